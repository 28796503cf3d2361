const int limit = 3;
char name[4] = "too long";
int table[2];

on call(int n) {
	limit = 4;
	table[2] = 1;
	int zero = n / 0;
	string text = "a";
	return "a" + 1;
}
