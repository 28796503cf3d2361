int deep() { u8 a[240]; u8 b[240]; a[0] = 1; b[0] = a[0]; return b[0]; }
int deeper() { u8 a[240]; a[0] = deep(); return a[0]; }

on call { return deeper(); }
