#include <stdio.h>
double d;
int *p;

on call {
	return p->x;
}
