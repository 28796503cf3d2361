u64 n;
