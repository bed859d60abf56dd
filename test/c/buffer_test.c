#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buffer.h"

/* Read by the sanitizers: an allocation too large returns NULL, as it does without them. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static struct rat_buffer buffer;

static int free_buffer(void **state)
{
    (void)state;
    rat_buffer_free(&buffer);
    return 0;
}

static void a_new_buffer_has_allocated_nothing(void **state)
{
    (void)state;
    rat_buffer_init(&buffer, 10);
    assert_null(buffer.bytes);
    assert_int_equal(buffer.length, 0);
    assert_int_equal(buffer.capacity, 0);
}

static void what_is_appended_stands_in_order(void **state)
{
    (void)state;
    rat_buffer_init(&buffer, 1000);
    for (int i = 0; i < 100; i++)
        assert_int_equal(rat_buffer_append(&buffer, "0123456789", 10), RAT_OK);
    assert_int_equal(buffer.length, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buffer.bytes[i], '0' + i % 10);
}

static void a_buffer_takes_its_limit_and_not_a_byte_more(void **state)
{
    (void)state;
    rat_buffer_init(&buffer, 5);
    assert_int_equal(rat_buffer_append(&buffer, "abcde", 5), RAT_OK);
    assert_int_equal(rat_buffer_append(&buffer, "f", 1), RAT_TOO_BIG);
    assert_int_equal(rat_buffer_append(&buffer, "", 0), RAT_OK);
    assert_int_equal(buffer.length, 5);
    assert_memory_equal(buffer.bytes, "abcde", 5);
    assert_true(buffer.capacity <= 5);
}

static void sizes_that_would_overflow_are_too_big(void **state)
{
    (void)state;
    rat_buffer_init(&buffer, SIZE_MAX);
    assert_int_equal(rat_buffer_append(&buffer, "abc", 3), RAT_OK);
    assert_int_equal(rat_buffer_reserve(&buffer, SIZE_MAX), RAT_TOO_BIG);
    assert_int_equal(rat_buffer_reserve(&buffer, SIZE_MAX - 2), RAT_TOO_BIG);
    assert_memory_equal(buffer.bytes, "abc", 3);
}

static void without_memory_the_content_stays(void **state)
{
    (void)state;
    rat_buffer_init(&buffer, SIZE_MAX);
    assert_int_equal(rat_buffer_append(&buffer, "abc", 3), RAT_OK);
    assert_int_equal(rat_buffer_reserve(&buffer, PTRDIFF_MAX), RAT_NO_MEMORY);
    assert_int_equal(buffer.length, 3);
    assert_memory_equal(buffer.bytes, "abc", 3);
}

static void room_reserved_is_there_and_is_not_length(void **state)
{
    (void)state;
    rat_buffer_init(&buffer, 100);
    assert_int_equal(rat_buffer_reserve(&buffer, 100), RAT_OK);
    memset(buffer.bytes, 1, 100);
    assert_int_equal(buffer.length, 0);
    const uint8_t *before = buffer.bytes;
    assert_int_equal(rat_buffer_append(&buffer, "abc", 3), RAT_OK);
    assert_ptr_equal(buffer.bytes, before);
}

static void it_grows_by_doubling(void **state)
{
    (void)state;
    size_t moves = 0, capacity = 0;
    rat_buffer_init(&buffer, 1 << 20);
    for (int i = 0; i < 1 << 20; i++) {
        assert_int_equal(rat_buffer_append(&buffer, "x", 1), RAT_OK);
        moves += buffer.capacity != capacity;
        capacity = buffer.capacity;
    }
    assert_true(moves <= 22);
}

static void a_freed_buffer_may_be_used_again_under_its_limit(void **state)
{
    (void)state;
    rat_buffer_init(&buffer, 3);
    assert_int_equal(rat_buffer_append(&buffer, "abc", 3), RAT_OK);
    rat_buffer_free(&buffer);
    assert_null(buffer.bytes);
    assert_int_equal(rat_buffer_append(&buffer, "abcd", 4), RAT_TOO_BIG);
    assert_int_equal(rat_buffer_append(&buffer, "abc", 3), RAT_OK);
}

#define FREED(test) cmocka_unit_test_teardown(test, free_buffer)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FREED(a_new_buffer_has_allocated_nothing),
        FREED(what_is_appended_stands_in_order),
        FREED(a_buffer_takes_its_limit_and_not_a_byte_more),
        FREED(sizes_that_would_overflow_are_too_big),
        FREED(without_memory_the_content_stays),
        FREED(room_reserved_is_there_and_is_not_length),
        FREED(it_grows_by_doubling),
        FREED(a_freed_buffer_may_be_used_again_under_its_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
