#include "base/testpoint.h"

#ifdef RAT_TEST
void (*rat_test_point)(const char *name);
#else
extern int rat_testpoint_absent; /* ISO C wants a declaration in every file */
#endif
