on call(int n) {
	int unused = 3;
	if (n = 2)
		return 1;
	return 0;
	n++;
}
