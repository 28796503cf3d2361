u64 calls;

on enter(kill, tgkill) { if (sig == 9) calls += pid(); }
on connect { return port == 25 ? -13 : 0; }
on ingress("lo") { return length > 1000; }
