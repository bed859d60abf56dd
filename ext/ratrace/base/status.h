/* status.h - how a function that can fail says so: one list of codes and texts.
 *
 * Functions return `enum rat_status`, which must be checked; results come back through `out` arguments. Only ruby/
 * turns a status into an exception. A status is about one call: nothing is remembered.
 */
#ifndef RAT_BASE_STATUS_H
#define RAT_BASE_STATUS_H

#define RAT_MUST_CHECK __attribute__((warn_unused_result))

/* code, text that completes "cannot ...: " */
#define RAT_STATUS_LIST(X)                                                                         \
    X(OK, "no error")                                                                              \
    X(NO_MEMORY, "out of memory")                                                                  \
    X(TOO_BIG, "larger than its limit")                                                            \
    X(INVALID, "invalid argument")                                                                 \
    X(IO, "input/output error")                                                                    \
    X(NO_SPACE, "no space left on the device")                                                     \
    X(EXISTS, "already exists")                                                                    \
    X(NOT_FOUND, "not found")                                                                      \
    X(ACCESS, "permission denied")                                                                 \
    X(BUSY, "in use by a living process")                                                          \
    X(CORRUPT, "damaged data")                                                                     \
    X(UNSUPPORTED, "needs a feature this version does not know")                                   \
    X(END, "end of the file")                                                                      \
    X(TORN, "ends in the middle of a chunk")                                                       \
    X(LATE, "not done in time")                                                                   \
    X(THREAD, "a thread could not be started")                                                     \
    X(BROKEN, "an internal invariant failed")

enum rat_status {
#define RAT_STATUS_CODE(code, text) RAT_##code,
    RAT_STATUS_LIST(RAT_STATUS_CODE)
#undef RAT_STATUS_CODE
};

/* The text of a status; never NULL. Any thread. */
const char *rat_status_text(enum rat_status status);

/* The status that stands for an errno value. Any thread. */
enum rat_status rat_status_from_errno(int error);

#endif
