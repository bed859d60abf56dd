#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"

/* RFC 3720, appendix B.4; the bytes there are the checksum in little-endian order. */
static void crc32c_gives_the_checksums_of_rfc_3720(void **state)
{
    (void)state;
    static const uint8_t read_command[48] = {
        0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18,
        0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
    uint8_t bytes[32];
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(rat_check_crc32c(bytes, sizeof bytes), 0x8A9136AAu);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(rat_check_crc32c(bytes, sizeof bytes), 0x62A8AB43u);
    for (uint8_t i = 0; i < sizeof bytes; i++)
        bytes[i] = i;
    assert_int_equal(rat_check_crc32c(bytes, sizeof bytes), 0x46DD794Eu);
    for (uint8_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(31 - i);
    assert_int_equal(rat_check_crc32c(bytes, sizeof bytes), 0x113FDB5Cu);
    assert_int_equal(rat_check_crc32c(read_command, sizeof read_command), 0xD9963A56u);
}

static void crc32c_gives_the_check_value_of_the_catalogues(void **state)
{
    (void)state;
    assert_int_equal(rat_check_crc32c("123456789", 9), 0xE3069283u);
    assert_int_equal(rat_check_crc32c("", 0), 0);
}

static void crc32c_finds_each_single_bit(void **state)
{
    (void)state;
    uint8_t bytes[64] = {0};
    uint32_t right = rat_check_crc32c(bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(rat_check_crc32c(bytes, sizeof bytes), right);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* The bytes and values of the reference implementation's own sanity test; a length for each way it has to hash. */
static void xxh3_gives_the_values_of_the_reference_tool(void **state)
{
    (void)state;
    static const struct {
        size_t length;
        uint64_t hash;
    } known[] = {
        {0, 0x2D06800538D394C2},  {1, 0xC44BDFF4074EECDB},  {6, 0x27B56A84CD2D7325},
        {12, 0xA713DAF0DFBB77E7}, {24, 0xA3FE70BF9D3510EB}, {48, 0x397DA259ECBA1F11},
        {80, 0xBCDEFBBB2C47C90A}, {195, 0xCD94217EE362EC3A}, {512, 0x617E49599013CB6B},
    };
    uint8_t bytes[512];
    uint64_t next = 2654435761u;
    for (size_t i = 0; i < sizeof bytes; i++, next *= UINT64_C(11400714785074694797))
        bytes[i] = (uint8_t)(next >> 56);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_int_equal(rat_check_xxh3(bytes, known[i].length), known[i].hash);
}

static void checks_read_no_byte_beyond_the_end(void **state)
{
    (void)state;
    for (size_t length = 1; length < 600; length++) {
        uint8_t *bytes = calloc(length, 1); /* a red zone behind it */
        assert_non_null(bytes);
        rat_check_crc32c(bytes, length);
        rat_check_xxh3(bytes, length);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_gives_the_checksums_of_rfc_3720),
        cmocka_unit_test(crc32c_gives_the_check_value_of_the_catalogues),
        cmocka_unit_test(crc32c_finds_each_single_bit),
        cmocka_unit_test(xxh3_gives_the_values_of_the_reference_tool),
        cmocka_unit_test(checks_read_no_byte_beyond_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
