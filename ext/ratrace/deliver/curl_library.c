#include "deliver/curl_library.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct rat_crypto rat_crypto;
static bool crypto_loaded;

static void *open_first(const char *const *names, size_t count)
{
    void *library = NULL;
    for (size_t i = 0; i < count && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* Through memcpy's like: C has no cast from an object pointer to a function's. */
static bool find(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    *(void **)to = found;
    return found != NULL;
}

enum rat_status rat_crypto_load(char *why, size_t why_length)
{
    static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};
    if (crypto_loaded)
        return RAT_OK;
    void *library = open_first(names, COUNT(names));
    struct rat_crypto *c = &rat_crypto;
    crypto_loaded = library != NULL && find(library, "EVP_sha256", &c->EVP_sha256) &&
        find(library, "EVP_MD_CTX_new", &c->EVP_MD_CTX_new) && find(library, "EVP_MD_CTX_free", &c->EVP_MD_CTX_free) &&
        find(library, "EVP_DigestInit_ex", &c->EVP_DigestInit_ex) &&
        find(library, "EVP_DigestUpdate", &c->EVP_DigestUpdate) &&
        find(library, "EVP_DigestFinal_ex", &c->EVP_DigestFinal_ex) && find(library, "HMAC", &c->HMAC);
    if (crypto_loaded)
        return RAT_OK;
    snprintf(why, why_length, "libcrypto was not found: install the Debian package libssl3 (or your system's like of it)");
    return RAT_UNSUPPORTED;
}

#ifdef RAT_HAS_CURL

struct rat_curl rat_curl;
static bool curl_loaded;

enum rat_status rat_curl_load(char *why, size_t why_length)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};
    if (curl_loaded)
        return RAT_OK;
    void *library = open_first(names, COUNT(names));
    bool found = library != NULL;
#define FIND(name) found = found && find(library, "curl_" #name, &rat_curl.name);
    RAT_CURL_LIST(FIND)
#undef FIND
    if (found)
        (void)find(library, "curl_multi_wakeup", &rat_curl.multi_wakeup);
    if (!found) {
        snprintf(why, why_length, "libcurl %s: install the Debian package libcurl4 (or your system's like of it)",
                 library == NULL ? "was not found" : "is older than 7.28");
        return RAT_UNSUPPORTED;
    }
    CURLcode code = rat_curl.global_init(CURL_GLOBAL_DEFAULT);
    if (code != CURLE_OK) {
        snprintf(why, why_length, "libcurl cannot be initialised: %s", rat_curl.easy_strerror(code));
        return RAT_UNSUPPORTED;
    }
    curl_loaded = true;
    return RAT_OK;
}

#else

enum rat_status rat_curl_load(char *why, size_t why_length)
{
    snprintf(why, why_length, "this ratrace was built without libcurl: install the Debian package libcurl4-openssl-dev "
                              "(or your system's like of it), then install the gem again");
    return RAT_UNSUPPORTED;
}

#endif
