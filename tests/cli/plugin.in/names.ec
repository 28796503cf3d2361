struct point { int x; int y; };
struct point here;
map<u32, u64> hits[16];

int twice(int n) { return 2 * n; }

on call(int n) {
	int number = here.z;
	nubmer++;
	hits++;
	return twice(1, 2) + twise(3) + hits[here];
}
