map<u32, u64> m[4];

int who(void) { return pid(); }

on enter(opnat) {}
on enter(openat) { flags = 1; }
on enter(openat, close) { return filename; }
on xdp {}
on xdp("lo") { return who(); }
on ingress("lo", "eth0") {}
on connect("lo") {}
on connect { return packet8(0); }
on timer("5 minutes") {}
on timer("1us") {}
on tracepoint("no_such_name") {}
on exits {}
