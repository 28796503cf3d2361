/* Valid, but not what its author meant. */
enum { XDP_DROP = 1, XDP_PASS = 2, EACCES = 13 };
struct path { char text[64]; };
struct path path;
map<u32, u64> m[16];

on xdp("lo") {
	return packet8(9) == 17 ? XDP_DROP : XDP_PASS;
}

on connect {
	return ip == 0x7f000001 ? EACCES : 0;
}

on enter(waitpid, umount, openat) {
	read_user(path, sizeof(path), arg1);
	m[pid(), call]++;
}
