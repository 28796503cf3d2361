on enter {
