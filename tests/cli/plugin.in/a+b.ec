on enter {}
