char name[16];

on call(int n) {
	comm(name);
	print("%s calls with %d", name, n);
	return strcmp(name, "hello") == 0;
}
