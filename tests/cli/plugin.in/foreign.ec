// What users of other tracers write.
on enter(openat) { print("%d", arg6); }
on enter(257) {}
on enter(open*) {}
on tracepoint("sched:*") {}
on connect { return ip == "127.0.0.1"; }
on return(openat) {}
