/* curl_library.h - libcurl and libcrypto, loaded when something is to be sent for the first time.
 *
 * They are opened with dlopen, not linked: with all they bring along they cost 30 ms and 5 MB, which a process that
 * ships nothing does not pay, and a host without them still records. Building takes <curl/curl.h> for the types; where
 * that was missing, loading says so. Nothing is ever unloaded.
 *
 * Threads: rat_curl_load by one thread at a time, one that may read the environment (libcurl's own initialisation does
 *          both and is not safe against another user of libcurl before 7.84; under the GVL it is). The tables: any.
 * Fork:    what is loaded stays good in the child.
 */
#ifndef RAT_DELIVER_CURL_LIBRARY_H
#define RAT_DELIVER_CURL_LIBRARY_H

#include <stddef.h>

#include "base/status.h"

#if defined(__has_include)
#if __has_include(<curl/curl.h>)
#define RAT_HAS_CURL 1
#include <curl/curl.h>

#define RAT_CURL_LIST(X)                                                                           \
    X(global_init)                                                                                 \
    X(version_info)                                                                                \
    X(easy_init)                                                                                   \
    X(easy_setopt)                                                                                 \
    X(easy_getinfo)                                                                                \
    X(easy_cleanup)                                                                                \
    X(easy_strerror)                                                                               \
    X(multi_init)                                                                                  \
    X(multi_add_handle)                                                                            \
    X(multi_remove_handle)                                                                         \
    X(multi_perform)                                                                               \
    X(multi_wait)                                                                                  \
    X(multi_fdset)                                                                                 \
    X(multi_info_read)                                                                             \
    X(multi_cleanup)                                                                               \
    X(share_init)                                                                                  \
    X(share_setopt)                                                                                \
    X(share_cleanup)                                                                               \
    X(slist_append)                                                                                \
    X(slist_free_all)

struct rat_curl {
#define RAT_CURL_MEMBER(name) __typeof__(curl_##name) *name;
    RAT_CURL_LIST(RAT_CURL_MEMBER)
#undef RAT_CURL_MEMBER
    CURLMcode (*multi_wakeup)(CURLM *multi); /* NULL before 7.68 */
};
extern struct rat_curl rat_curl; /* filled by rat_curl_load */
#endif
#endif

/* What is used of libcrypto; its types are opaque here. */
struct rat_crypto {
    const void *(*EVP_sha256)(void);
    void *(*EVP_MD_CTX_new)(void);
    void (*EVP_MD_CTX_free)(void *context);
    int (*EVP_DigestInit_ex)(void *context, const void *type, void *engine);
    int (*EVP_DigestUpdate)(void *context, const void *bytes, size_t length);
    int (*EVP_DigestFinal_ex)(void *context, unsigned char *out, unsigned *length);
    unsigned char *(*HMAC)(const void *type, const void *key, int key_length, const unsigned char *bytes, size_t length,
                           unsigned char *out, unsigned *out_length);
};
extern struct rat_crypto rat_crypto; /* filled by rat_crypto_load */

/* Load and initialise. RAT_UNSUPPORTED: it cannot be had, and `why` says what to install. Again is no harm. */
RAT_MUST_CHECK enum rat_status rat_curl_load(char *why, size_t why_length);
RAT_MUST_CHECK enum rat_status rat_crypto_load(char *why, size_t why_length);

#endif
