on call {
	retrn 3;
	int x = ;
	if (x { }
}
