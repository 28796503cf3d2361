/*
 * Counts new TCP connections by their source address, before the kernel processes the packet. "lo"
 * is the network device: write the name of another one in its place. If drop_above is set, only
 * that many connections from an address are accepted, and further ones are dropped.
 *
 *     tollgate plugin load examples/syns.ec
 *     tollgate plugin show syns
 */
enum { ETHERNET = 14, IPV4 = 0x0800, TCP = 6, SYN = 2, ACK = 16 };

u64 drop_above;						/* 0: nothing is dropped */
map<u32, u64> syns[65536];				/* by IPv4 address */

on xdp("lo") {
	u32 header, from;
	u8 flags;

	if (length < ETHERNET + 40 || packet16(12) != IPV4 || packet8(ETHERNET + 9) != TCP)
		return 0;
	header = (packet8(ETHERNET) & 15) * 4;
	if (length < ETHERNET + header + 14)
		return 0;
	flags = packet8(ETHERNET + header + 13);
	if ((flags & (SYN | ACK)) != SYN)
		return 0;
	from = packet32(ETHERNET + 12);
	syns[from]++;
	return drop_above && syns[from] > drop_above;
}
