/*
 * Allows connections to these networks and ports only; others fail with EACCES.
 *
 *     tollgate plugin load examples/connect-list.ec
 *     tollgate plugin show connect-list
 */
struct network { u32 ip; u32 mask; u16 port; };		/* port 0: all */

const struct network allowed[] = {
	{ 0x7f000000, 0xff000000 },			/* 127.0.0.0/8 */
	{ 0x0a000000, 0xff000000, 5432 },		/* 10.0.0.0/8, PostgreSQL */
	{ 0, 0, 53 },					/* name servers */
	{ 0, 0, 443 },
};

enum { AF_INET = 2, AF_INET6 = 10, EACCES = 13 };

map<u16, u64> refused[1024];				/* by port */

on connect {
	if (family != AF_INET && !ip)			/* IPv6: only IPv4-mapped and loopback */
		return ip6[0] || ip6[1] || ip6[2] || ip6[3] != 1 ? -EACCES : 0;
	for (u32 i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
		if ((ip & allowed[i].mask) == allowed[i].ip && (!allowed[i].port || allowed[i].port == port))
			return 0;
	refused[port]++;
	return -EACCES;
}
