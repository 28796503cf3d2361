int once(int n) { return again(n); }
int again(int n) { return once(n); }

on call(int n) {
	break;
	switch (n) { case 1: case 1: return 1; }
	int same;
	int same;
	return 0;
}

on open { return 0; }
