/* SigV4 and the digests against published values: AWS's signature test suite and the examples of the S3 manual
 * ("Signature Calculations for the Authorization Header"), RFC 4231 for HMAC, RFC 4648 for base64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "deliver/curl_library.h"
#include "deliver/sigv4.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define WELCOME "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072" /* "Welcome to Amazon S3." */

static const struct rat_sigv4 suite = {
    "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1", "service", "20150830T123600Z"};
static const struct rat_sigv4 s3 = {
    "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "s3", "20130524T000000Z"};

static void assert_authorization(const struct rat_sigv4 *signer, const struct rat_sigv4_request *request,
                                 const char *signed_headers, const char *signature)
{
    char expected[512];
    snprintf(expected, sizeof expected, "AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request, SignedHeaders=%s, "
             "Signature=%s", signer->access_key_id, signer->date, signer->region, signer->service, signed_headers,
             signature);
    struct rat_buffer out;
    rat_buffer_init(&out, 4096);
    assert_int_equal(rat_sigv4_authorization(signer, request, &out), RAT_OK);
    assert_string_equal((const char *)out.bytes, expected);
    rat_buffer_free(&out);
}

static void test_the_suite(void **state)
{
    (void)state;
    static const char *const headers[] = {"X-Amz-Date:20150830T123600Z", "Host:example.amazonaws.com"};
    struct rat_sigv4_request request = {"GET", "/", "", headers, 2, EMPTY};
    assert_authorization(&suite, &request, "host;x-amz-date",
                         "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
    request.query = "Param1=value1&Param2=value2";
    assert_authorization(&suite, &request, "host;x-amz-date",
                         "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
    request.query = "";
    request.method = "POST";
    assert_authorization(&suite, &request, "host;x-amz-date",
                         "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
}

static void test_the_examples_of_s3(void **state)
{
    (void)state;
    static const char *const get[] = {"Host: examplebucket.s3.amazonaws.com", "Range: bytes=0-9",
                                      "x-amz-content-sha256: " EMPTY, "x-amz-date: 20130524T000000Z"};
    struct rat_sigv4_request request = {"GET", "/test.txt", "", get, 4, EMPTY};
    assert_authorization(&s3, &request, "host;range;x-amz-content-sha256;x-amz-date",
                         "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    static const char *const put[] = {"x-amz-storage-class: REDUCED_REDUNDANCY",
                                      "x-amz-date: 20130524T000000Z",
                                      "x-amz-content-sha256: " WELCOME,
                                      "Date:   Fri, 24 May  2013\t00:00:00 GMT ",
                                      "Host: examplebucket.s3.amazonaws.com"};
    struct rat_buffer path;
    rat_buffer_init(&path, 256);
    assert_int_equal(rat_sigv4_encode_path("/test$file.text", &path), RAT_OK);
    assert_int_equal(rat_buffer_append(&path, "", 1), RAT_OK);
    request = (struct rat_sigv4_request){"PUT", (const char *)path.bytes, "", put, 5, WELCOME};
    assert_authorization(&s3, &request, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    rat_buffer_free(&path);
    static const char *const list[] = {"host:examplebucket.s3.amazonaws.com", "x-amz-content-sha256:" EMPTY,
                                       "x-amz-date:20130524T000000Z"};
    request = (struct rat_sigv4_request){"GET", "/", "max-keys=2&prefix=J", list, 3, EMPTY};
    assert_authorization(&s3, &request, "host;x-amz-content-sha256;x-amz-date",
                         "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void test_a_path_is_encoded_once_and_byte_by_byte(void **state)
{
    (void)state;
    struct rat_buffer out;
    rat_buffer_init(&out, 256);
    assert_int_equal(rat_sigv4_encode_path("/a b/%2F/\xC3\xA9~-_.+=", &out), RAT_OK);
    assert_int_equal(rat_buffer_append(&out, "", 1), RAT_OK);
    assert_string_equal((const char *)out.bytes, "/a%20b/%252F/%C3%A9~-_.%2B%3D");
    rat_buffer_free(&out);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    const char *headers[RAT_SIGV4_HEADERS_MAX + 1];
    for (size_t i = 0; i <= RAT_SIGV4_HEADERS_MAX; i++)
        headers[i] = "a: b";
    const struct rat_sigv4_request request = {"GET", "/", "", headers, RAT_SIGV4_HEADERS_MAX + 1, EMPTY};
    struct rat_buffer out;
    rat_buffer_init(&out, 4096);
    assert_int_equal(rat_sigv4_authorization(&s3, &request, &out), RAT_TOO_BIG);
    char secret[600];
    memset(secret, 'x', sizeof secret);
    secret[sizeof secret - 1] = '\0';
    struct rat_sigv4 signer = s3;
    signer.secret_access_key = secret;
    const struct rat_sigv4_request small = {"GET", "/", "", headers, 1, EMPTY};
    assert_int_equal(rat_sigv4_authorization(&signer, &small, &out), RAT_TOO_BIG);
    rat_buffer_free(&out);
}

static void test_dates(void **state)
{
    (void)state;
    char date[RAT_SIGV4_DATE];
    rat_sigv4_date(1369353600, date);
    assert_string_equal(date, "20130524T000000Z");
    rat_sigv4_date(1440938160, date);
    assert_string_equal(date, "20150830T123600Z");
}

static void test_the_digests(void **state)
{
    (void)state;
    uint8_t digest[RAT_SHA256_BYTES];
    char hex[RAT_SHA256_HEX];
    assert_int_equal(rat_sha256("", 0, digest), RAT_OK);
    rat_hex(digest, sizeof digest, hex);
    assert_string_equal(hex, EMPTY);
    struct rat_sha256 pieces;
    rat_sha256_begin(&pieces);
    rat_sha256_update(&pieces, "Welcome to ", 11);
    rat_sha256_update(&pieces, "Amazon S3.", 10);
    assert_int_equal(rat_sha256_finish(&pieces, digest), RAT_OK);
    rat_hex(digest, sizeof digest, hex);
    assert_string_equal(hex, WELCOME);
    assert_int_equal(rat_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, digest), RAT_OK);
    rat_hex(digest, sizeof digest, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

static void test_base64(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"", ""},         {"f", "Zg=="},         {"fo", "Zm8="},
                                           {"foo", "Zm9v"},  {"foob", "Zm9vYg=="},  {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char out[16];
        rat_base64((const uint8_t *)pairs[i][0], strlen(pairs[i][0]), out);
        assert_string_equal(out, pairs[i][1]);
    }
}

static int load(void **state)
{
    (void)state;
    char why[256];
    return rat_crypto_load(why, sizeof why) == RAT_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_suite),
        cmocka_unit_test(test_the_examples_of_s3),
        cmocka_unit_test(test_a_path_is_encoded_once_and_byte_by_byte),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_dates),
        cmocka_unit_test(test_the_digests),
        cmocka_unit_test(test_base64),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
