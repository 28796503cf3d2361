int twice(int);

on call(int n) { return twice(n); }

int twice(int n) { return 2 * n; }

on call { return 1; }
