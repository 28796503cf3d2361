map<u32, u64> huge[99999999999];
u8 big[99999999999];

on call {
	u8 local[300];
	return 0x1ffffffffffffffff;
}
