#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "record/dictionary.h"
#include "record/event.h"

#define TABLES_AT 4096u

static const struct rat_dict_caps small = {.frames = 5, .names = 6, .contexts = 3, .text = 64};

static uint8_t *mapping; /* ends at a guard page */
static uint64_t mapped, text_at, given_out;
static bool disk_full;
static struct rat_dict *dict;

static enum rat_status reserve(void *owner, uint64_t at, uint64_t length)
{
    assert_ptr_equal(owner, &mapping);
    assert_true(at >= TABLES_AT && length > 0 && at + length <= mapped);
    if (disk_full)
        return RAT_NO_SPACE;
    given_out += length;
    return mprotect(mapping + at, length, PROT_READ | PROT_WRITE) == 0 ? RAT_OK : RAT_IO;
}

/* What is not reserved cannot be touched. */
static enum rat_status open_dict(const struct rat_dict_caps *caps)
{
    text_at = TABLES_AT + rat_dict_tables_bytes(caps);
    mapped = text_at + rat_dict_text_bytes(caps);
    mapping = mmap(NULL, mapped + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(mapping, MAP_FAILED);
    given_out = 0;
    return rat_dict_new(mapping, TABLES_AT, text_at, caps, reserve, &mapping, &dict);
}

static int open_small(void **state)
{
    (void)state;
    disk_full = false;
    return open_dict(&small) != RAT_OK;
}

static int open_default(void **state)
{
    (void)state;
    disk_full = false;
    return open_dict(NULL) != RAT_OK;
}

static int close_dict(void **state)
{
    (void)state;
    rat_dict_free(dict);
    dict = NULL;
    return munmap(mapping, mapped + 4096);
}

static rat_name_id name(const char *text)
{
    return rat_dict_name(dict, text, strlen(text), true);
}

static rat_frame_id frame(uint32_t method, uint32_t line)
{
    struct rat_frame_entry entry = {.owner = 1, .method = method, .file = 1, .line = line, .kind = RAT_FRAME_INSTANCE};
    return rat_dict_frame(dict, &entry);
}

static struct rat_dict_view view(void)
{
    struct rat_dict_view seen;
    assert_int_equal(rat_dict_view(mapping, mapped, TABLES_AT, &seen), RAT_OK);
    return seen;
}

static void assert_text(rat_name_id id, const void *bytes, size_t length)
{
    struct rat_dict_view seen = view();
    assert_in_range(id, 1, seen.name_count);
    assert_int_equal(seen.names[id].length, length);
    assert_true(seen.names[id].at + length <= seen.text_used);
    assert_memory_equal(seen.text + seen.names[id].at, bytes, length);
}

/* ---------------------------------------------------------------- ids */

static void a_new_dictionary_holds_the_frame_for_what_does_not_fit(void **state)
{
    (void)state;
    struct rat_dict_view seen = view();
    assert_int_equal(seen.frame_count, RAT_FRAME_FULL);
    assert_int_equal(seen.frames[RAT_FRAME_FULL].kind, RAT_FRAME_SPECIAL);
    assert_text(seen.frames[RAT_FRAME_FULL].method, "(dictionary full)", 17);
    assert_int_equal(seen.context_count, 0);
}

static void equal_text_has_the_equal_id_and_other_text_another(void **state)
{
    (void)state;
    rat_name_id first = name("first"), second = name("second");
    assert_int_equal(first, 2); /* ids are dense; 1 is "(dictionary full)" */
    assert_int_equal(second, 3);
    assert_int_equal(name("first"), first);
    assert_int_equal(name("firs"), 4);
    assert_text(first, "first", 5);
    assert_text(second, "second", 6);
}

static void names_are_bytes_and_need_not_be_utf8(void **state)
{
    (void)state;
    static const char latin[] = "caf\xE9", with_nul[] = "a\0b";
    rat_name_id bytes = rat_dict_name(dict, latin, 4, false), nul = rat_dict_name(dict, with_nul, 3, true);
    assert_text(bytes, latin, 4);
    assert_text(nul, with_nul, 3);
    assert_int_equal(view().names[bytes].utf8, 0);
    assert_int_equal(view().names[nul].utf8, 1);
    assert_int_not_equal(rat_dict_name(dict, latin, 4, true), bytes); /* the same bytes, meant otherwise */
}

static void the_empty_name_is_a_name(void **state)
{
    (void)state;
    rat_name_id empty = name("");
    assert_int_not_equal(empty, 0);
    assert_int_equal(name(""), empty);
    assert_text(empty, "", 0);
}

static void a_name_longer_than_the_limit_is_cut_and_no_longer_utf8(void **state)
{
    (void)state;
    char *text = malloc(RAT_NAME_BYTES_MAX + 1);
    assert_non_null(text);
    memset(text, 'x', RAT_NAME_BYTES_MAX + 1);
    rat_name_id whole = rat_dict_name(dict, text, RAT_NAME_BYTES_MAX, true);
    rat_name_id cut = rat_dict_name(dict, text, RAT_NAME_BYTES_MAX + 1, true);
    assert_text(whole, text, RAT_NAME_BYTES_MAX);
    assert_text(cut, text, RAT_NAME_BYTES_MAX);
    assert_int_equal(view().names[whole].utf8, 1);
    assert_int_equal(view().names[cut].utf8, 0);
    free(text);
}

static void frames_differ_when_any_field_does(void **state)
{
    (void)state;
    struct rat_frame_entry entry = {.owner = 1, .method = 1, .called = 1, .file = 1, .line = 1, .kind = 1};
    uint32_t *fields[] = {&entry.owner, &entry.method, &entry.called, &entry.file, &entry.line, &entry.kind};
    rat_frame_id first = rat_dict_frame(dict, &entry);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        (*fields[i])++;
        assert_int_equal(rat_dict_frame(dict, &entry), first + 1 + i);
        (*fields[i])--;
    }
    assert_int_equal(rat_dict_frame(dict, &entry), first);
}

static void every_context_is_new(void **state)
{
    (void)state;
    struct rat_context_entry thread = {.kind = RAT_CONTEXT_THREAD, .lane = 1, .os_tid = 42};
    assert_int_equal(rat_dict_context(dict, &thread), 1);
    assert_int_equal(rat_dict_context(dict, &thread), 2);
    assert_int_equal(view().contexts[2].os_tid, 42);
}

static void thousands_of_names_and_frames_are_all_found_again(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    char text[16];
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < COUNT; i++) {
            snprintf(text, sizeof text, "name %u", i);
            assert_int_equal(name(text), 2 + i);
            assert_int_equal(frame(2 + i, i), 2 + i);
        }
    assert_int_equal(view().name_count, 1 + COUNT);
    assert_text(2 + COUNT - 1, "name 19999", 10);
    assert_true(given_out < mapped / 2); /* reserved as it fills, not at once */
}

/* ---------------------------------------------------------------- full */

static void past_its_cap_the_frame_table_folds_and_counts(void **state)
{
    (void)state;
    for (uint32_t line = 1; line < small.frames; line++)
        assert_int_equal(frame(1, line), 1 + line);
    assert_int_equal(frame(1, 98), RAT_FRAME_FULL);
    assert_int_equal(frame(1, 99), RAT_FRAME_FULL);
    assert_int_equal(frame(1, 1), 2); /* what is there is still found */
    assert_int_equal(rat_dict_fold(dict), RAT_FRAME_FULL);
    assert_int_equal(rat_dict_head(dict)->folded, 3);
    assert_int_equal(view().frame_count, small.frames);
}

static void past_their_caps_names_and_contexts_have_no_id(void **state)
{
    (void)state;
    struct rat_context_entry context = {.kind = RAT_CONTEXT_FIBER};
    char text[2] = "a";
    for (uint32_t id = 2; id <= small.names; id++, text[0]++)
        assert_int_equal(name(text), id);
    assert_int_equal(name("z"), 0);
    assert_int_equal(name("a"), 2);
    for (uint32_t id = 1; id <= small.contexts; id++)
        assert_int_equal(rat_dict_context(dict, &context), id);
    assert_int_equal(rat_dict_context(dict, &context), 0);
    assert_int_equal(view().context_count, small.contexts);
}

static void past_the_text_area_a_name_has_no_id_and_a_shorter_one_may(void **state)
{
    (void)state;
    char text[64];
    memset(text, 't', sizeof text);
    uint32_t left = small.text - 17; /* "(dictionary full)" */
    assert_int_equal(rat_dict_name(dict, text, left + 1, true), 0);
    assert_int_equal(rat_dict_name(dict, text, left, true), 2);
    assert_int_equal(name("x"), 0);
    assert_int_equal(name(""), 3);
    assert_int_equal(view().text_used, small.text);
}

static void where_the_file_cannot_grow_nothing_is_added_until_it_can(void **state)
{
    (void)state;
    char text[16];
    uint32_t added = 1;
    disk_full = true;
    for (;; added++) {
        snprintf(text, sizeof text, "%u", added);
        if (name(text) == 0)
            break;
    }
    assert_int_equal(view().name_count, added);
    assert_int_equal(name("1"), 2);
    struct rat_context_entry context = {.kind = RAT_CONTEXT_THREAD};
    assert_int_equal(rat_dict_context(dict, &context), 0);
    disk_full = false;
    assert_int_equal(name(text), added + 1);
    assert_int_equal(rat_dict_context(dict, &context), 1);
}

static void a_file_without_room_for_the_head_is_refused(void **state)
{
    (void)state;
    disk_full = true;
    assert_int_equal(open_dict(&small), RAT_NO_SPACE);
    assert_null(dict);
    assert_int_equal(munmap(mapping, mapped + 4096), 0);
    disk_full = false;
}

/* ---------------------------------------------------------------- readers */

/* A head somebody else wrote, in a mapping that ends where it ends. */
static struct rat_dict_head *hostile_head(void)
{
    assert_int_equal(mprotect(mapping, mapped, PROT_READ | PROT_WRITE), 0);
    return (struct rat_dict_head *)(void *)(mapping + TABLES_AT);
}

static void assert_refused(void)
{
    struct rat_dict_view seen;
    assert_int_equal(rat_dict_view(mapping, mapped, TABLES_AT, &seen), RAT_CORRUPT);
}

static void a_view_refuses_a_count_that_does_not_fit(void **state)
{
    (void)state;
    struct rat_dict_head *head = hostile_head();
    _Atomic uint32_t *counts[] = {&head->frames, &head->names, &head->contexts, &head->text_used};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint32_t right = *counts[i];
        *counts[i] = UINT32_MAX;
        assert_refused();
        *counts[i] = (uint32_t)mapped;
        assert_refused();
        *counts[i] = right;
        view();
    }
}

static void a_view_refuses_an_offset_that_does_not_fit(void **state)
{
    (void)state;
    struct rat_dict_head *head = hostile_head();
    uint64_t *offsets[] = {&head->frames_at, &head->names_at, &head->contexts_at, &head->text_at};
    const uint64_t wrong[] = {mapped - 8, mapped, mapped + 8, UINT64_MAX & ~UINT64_C(7), UINT64_C(1) << 63, 4099};
    head->contexts = small.contexts;
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        uint64_t right = *offsets[i];
        for (size_t j = 0; j < sizeof wrong / sizeof *wrong; j++) {
            *offsets[i] = wrong[j];
            assert_refused();
        }
        *offsets[i] = right;
        view();
    }
}

static void a_view_refuses_a_head_outside_the_mapping(void **state)
{
    (void)state;
    struct rat_dict_view seen;
    const uint64_t wrong[] = {mapped - 8, mapped, UINT64_MAX - 7, 4};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(rat_dict_view(mapping, mapped, wrong[i], &seen), RAT_CORRUPT);
    assert_int_equal(rat_dict_view(mapping, 0, 0, &seen), RAT_CORRUPT);
}

static void a_view_that_fits_lies_inside_the_mapping(void **state)
{
    (void)state;
    struct rat_dict_head *head = hostile_head();
    head->names_at = mapped - (head->names + UINT64_C(1)) * sizeof(struct rat_name_entry); /* to the last byte */
    struct rat_dict_view seen = view();
    uint32_t sum = 0;
    for (uint32_t id = 0; id <= seen.name_count; id++)
        sum += seen.names[id].reserved;
    assert_int_equal(sum, 0);
}

/* ---------------------------------------------------------------- threads */

enum { SHARED_NAMES = 3000 };

struct adder {
    pthread_t thread;
    rat_name_id names[SHARED_NAMES];
    rat_frame_id frames[SHARED_NAMES];
};

static void *add_all(void *arg)
{
    struct adder *adder = arg;
    char text[16];
    for (uint32_t i = 0; i < SHARED_NAMES; i++) {
        snprintf(text, sizeof text, "shared %u", i);
        adder->names[i] = name(text);
        adder->frames[i] = frame(adder->names[i], i);
    }
    return NULL;
}

static void two_threads_that_add_the_same_get_the_same_ids(void **state)
{
    (void)state;
    static struct adder adders[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&adders[i].thread, NULL, add_all, &adders[i]), 0);
    uint32_t read = 0;
    while (read < 1 + SHARED_NAMES) { /* a reader without a lock sees only whole entries */
        struct rat_dict_view seen = view();
        assert_true(seen.name_count >= read);
        for (read = seen.name_count; read > 1 && read + 8 > seen.name_count; read--) {
            assert_true(seen.names[read].at + seen.names[read].length <= seen.text_used);
            assert_memory_equal(seen.text + seen.names[read].at, "shared ", 7);
        }
        read = seen.name_count;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(adders[i].thread, NULL);
    assert_memory_equal(adders[0].names, adders[1].names, sizeof adders[0].names);
    assert_memory_equal(adders[0].frames, adders[1].frames, sizeof adders[0].frames);
    assert_int_equal(view().name_count, 1 + SHARED_NAMES);
    assert_int_equal(view().frame_count, 1 + SHARED_NAMES);
}

#define IN(caps, test) cmocka_unit_test_setup_teardown(test, open_##caps, close_dict)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN(small, a_new_dictionary_holds_the_frame_for_what_does_not_fit),
        IN(small, equal_text_has_the_equal_id_and_other_text_another),
        IN(small, names_are_bytes_and_need_not_be_utf8),
        IN(small, the_empty_name_is_a_name),
        IN(default, a_name_longer_than_the_limit_is_cut_and_no_longer_utf8),
        IN(default, frames_differ_when_any_field_does),
        IN(small, every_context_is_new),
        IN(default, thousands_of_names_and_frames_are_all_found_again),
        IN(small, past_its_cap_the_frame_table_folds_and_counts),
        IN(small, past_their_caps_names_and_contexts_have_no_id),
        IN(small, past_the_text_area_a_name_has_no_id_and_a_shorter_one_may),
        IN(default, where_the_file_cannot_grow_nothing_is_added_until_it_can),
        cmocka_unit_test(a_file_without_room_for_the_head_is_refused),
        IN(small, a_view_refuses_a_count_that_does_not_fit),
        IN(small, a_view_refuses_an_offset_that_does_not_fit),
        IN(small, a_view_refuses_a_head_outside_the_mapping),
        IN(small, a_view_that_fits_lies_inside_the_mapping),
        IN(default, two_threads_that_add_the_same_get_the_same_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
