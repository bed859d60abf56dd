/* testpoint.h - named places inside race windows where a test may stop a thread; nothing in the gem.
 *
 * RAT_TEST_POINT("lane.entered") calls the function a test put into rat_test_point, with that name. Built only with
 * RAT_TEST; elsewhere the macro is empty, so a point may stand on the hot path.
 */
#ifndef RAT_BASE_TESTPOINT_H
#define RAT_BASE_TESTPOINT_H

#ifdef RAT_TEST
extern void (*rat_test_point)(const char *name);
#define RAT_TEST_POINT(name)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(rat_test_point != 0, 0))                                              \
            rat_test_point(name);                                                                  \
    } while (0)
#else
#define RAT_TEST_POINT(name) ((void)0)
#endif

#endif
