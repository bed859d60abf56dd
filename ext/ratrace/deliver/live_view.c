#include "deliver/live_view.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/testpoint.h"
#include "deliver/live_file.h"
#include "record/event.h"
#include "record/lane.h"

#define LENGTH_MAX (UINT64_C(2) << 30) /* 16 lanes of the largest slots take 1 GiB */
#define UNFINISHED_S 60                /* a file without magic is being made, unless it is older */
#define PAGE UINT64_C(4096)

static bool fits(const struct rat_live_view *view, uint64_t at, uint64_t length)
{
    return at <= view->length && length <= view->length - at;
}

/* Copy a range; holes of the file stay untouched zeros. */
static enum rat_status fetch(const struct rat_live_view *view, uint64_t at, uint64_t length)
{
    if (!fits(view, at, length))
        return RAT_CORRUPT;
    while (length > 0) {
        ssize_t got = pread(view->fd, view->memory + at, length, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return rat_status_from_errno(errno);
        if (got == 0)
            return RAT_CORRUPT; /* it was cut under our hands */
        at += (uint64_t)got;
        length -= (uint64_t)got;
    }
    return RAT_OK;
}

static bool ends(const char *text, size_t room)
{
    return memchr(text, '\0', room) != NULL;
}

static enum rat_status check_head(const struct rat_live_view *view)
{
    const struct rat_live_head *head = view->head;
    if (head->version != RAT_LIVE_VERSION)
        return RAT_UNSUPPORTED;
    uint64_t lane_bytes = RAT_LANES * sizeof(struct rat_lane_head);
    if (head->head_bytes != sizeof *head || head->total_bytes != view->length ||
        head->slot_bytes < RAT_SLOT_BYTES_MIN || head->slot_bytes > RAT_SLOT_BYTES_MAX ||
        head->slot_bytes % PAGE != 0 || head->lanes_at % PAGE != 0 || head->slots_at % PAGE != 0 ||
        head->lanes_at < sizeof *head || head->tables_at < sizeof *head || head->slots_at < sizeof *head ||
        !fits(view, head->lanes_at, lane_bytes) || !fits(view, head->slots_at, RAT_LANES * 2 * head->slot_bytes) ||
        head->clock < RAT_CLOCK_MONOTONIC || head->clock > RAT_CLOCK_CNTVCT || !ends(head->service, 64) ||
        !ends(head->host, 64) || !ends(head->ruby, 32) || !ends(head->recorder, 32) || !ends(head->trace, 256) ||
        !ends(head->out_dir, sizeof head->out_dir) || head->out_dir[0] != '/' ||
        atomic_load_explicit(&head->segment, memory_order_relaxed) == 0)
        return RAT_CORRUPT;
    return RAT_OK;
}

static bool is_locked(int fd)
{
    struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_GETLK, &asked) != 0 || asked.l_type != F_UNLCK;
}

pid_t rat_live_view_holder(int dir_fd, const char *name)
{
    struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    bool held = fd >= 0 && fcntl(fd, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return held ? asked.l_pid : 0;
}

static enum rat_status lock(int fd)
{
    struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_SETLK, &wanted) == 0)
        return RAT_OK;
    return errno == EAGAIN || errno == EACCES ? RAT_BUSY : rat_status_from_errno(errno);
}

static enum rat_status read_head(struct rat_live_view *view, const struct stat *file, const char *name)
{
    enum rat_status status = fetch(view, 0, sizeof *view->head);
    if (status != RAT_OK)
        return status;
    uint64_t magic = atomic_load_explicit(&view->head->magic, memory_order_relaxed); /* in our copy */
    if (magic == 0)
        return is_locked(view->fd) || time(NULL) - file->st_mtime < UNFINISHED_S ? RAT_BUSY : RAT_TORN;
    if (magic != RAT_LIVE_MAGIC)
        return RAT_CORRUPT;
    status = check_head(view);
    if (status != RAT_OK)
        return status;
    char expected[40];
    rat_live_name(view->head->session_hi, view->head->session_lo, expected);
    return strcmp(name, expected) == 0 ? RAT_OK : RAT_CORRUPT;
}

/* Ours by lock, and still the file of that name: another recovery may just have finished with it. */
static enum rat_status take_file(struct rat_live_view *view, int dir_fd, const char *name)
{
    if (is_locked(view->fd))
        return RAT_BUSY;
    enum rat_status status = lock(view->fd);
    struct stat here, there;
    if (status == RAT_OK && (fstat(view->fd, &here) != 0 || fstatat(dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) != 0 ||
                             here.st_ino != there.st_ino || here.st_dev != there.st_dev))
        status = RAT_NOT_FOUND;
    if (status == RAT_OK)
        status = read_head(view, &here, name); /* as its owner left it: what was read before may be older */
    return status;
}

static bool writes_to(const struct rat_live_view *view, const char *out_dir)
{
    return out_dir == NULL || strcmp(out_dir, view->head->out_dir) == 0;
}

static bool names_directory(const struct rat_live_view *view)
{
    return view->memory != MAP_FAILED && view->head->version == RAT_LIVE_VERSION &&
        ends(view->head->out_dir, sizeof view->head->out_dir) && view->head->out_dir[0] == '/';
}

enum rat_status rat_live_view_open(int dir_fd, const char *name, const char *out_dir, bool take,
                                   struct rat_live_view *out)
{
    struct rat_live_view view = {.memory = MAP_FAILED};
    view.fd = openat(dir_fd, name, (take ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    out->placed = false;
    if (view.fd < 0)
        return rat_status_from_errno(errno);
    enum rat_status status = RAT_OK;
    struct stat file;
    if (fstat(view.fd, &file) != 0)
        status = rat_status_from_errno(errno);
    else if (!S_ISREG(file.st_mode) || file.st_uid != geteuid())
        status = RAT_ACCESS;
    else if (file.st_size == 0)
        status = is_locked(view.fd) || time(NULL) - file.st_mtime < UNFINISHED_S ? RAT_BUSY : RAT_TORN;
    else if ((uint64_t)file.st_size < PAGE || (uint64_t)file.st_size > LENGTH_MAX)
        status = RAT_CORRUPT;
    if (status == RAT_OK) {
        view.length = (uint64_t)file.st_size;
        view.memory = mmap(NULL, view.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                           0);
        view.head = (struct rat_live_head *)(void *)view.memory;
        status = view.memory != MAP_FAILED ? read_head(&view, &file, name) : RAT_NO_MEMORY;
    }
    if ((status == RAT_OK || (status == RAT_CORRUPT && names_directory(&view))) && !writes_to(&view, out_dir))
        status = RAT_NOT_FOUND; /* another directory's, and its damage is not ours to tell */
    if (status == RAT_OK && take) {
        status = take_file(&view, dir_fd, name);
        if (status == RAT_OK && !writes_to(&view, out_dir))
            status = RAT_CORRUPT; /* it changed, though nobody owns it */
    }
    if (status == RAT_OK)
        status = fetch(&view, view.head->lanes_at, RAT_LANES * sizeof(struct rat_lane_head));
    view.placed = names_directory(&view);
    if (status != RAT_OK) {
        out->placed = view.placed;
        rat_live_view_close(&view);
        return status;
    }
    *out = view;
    return RAT_OK;
}

void rat_live_view_close(struct rat_live_view *view)
{
    if (view->memory != MAP_FAILED)
        munmap(view->memory, view->length);
    close(view->fd);
}

const struct rat_lane_head *rat_live_view_lane(const struct rat_live_view *view, uint32_t index)
{
    return (const struct rat_lane_head *)(const void *)(view->memory + view->head->lanes_at) + index;
}

enum rat_status rat_live_view_slot(const struct rat_live_view *view, uint32_t lane, uint32_t slot, uint32_t words,
                                   const uint64_t **out)
{
    if (lane >= RAT_LANES || slot > 1 || words > view->head->slot_bytes / sizeof(uint64_t))
        return RAT_CORRUPT;
    uint64_t at = view->head->slots_at + (lane * UINT64_C(2) + slot) * view->head->slot_bytes;
    *out = (const uint64_t *)(const void *)(view->memory + at);
    return fetch(view, at, words * sizeof(uint64_t));
}

/* ---------------------------------------------------------------- of a living process */

enum rat_status rat_live_view_refresh(struct rat_live_view *view)
{
    return fetch(view, view->head->lanes_at, RAT_LANES * sizeof(struct rat_lane_head));
}

bool rat_live_view_is_live(const struct rat_live_view *view)
{
    struct stat file;
    return is_locked(view->fd) && fstat(view->fd, &file) == 0 && file.st_nlink > 0;
}

/* A slot's head, as it is now. */
static enum rat_status fetch_slot_head(struct rat_live_view *view, uint32_t lane, uint32_t slot,
                                       struct rat_slot_head *out)
{
    const struct rat_slot_head *head = &rat_live_view_lane(view, lane)->slot[slot];
    enum rat_status status = fetch(view, (uint64_t)((const uint8_t *)head - view->memory), sizeof *head);
    if (status == RAT_OK)
        memcpy(out, head, sizeof *out);
    return status;
}

static uint64_t word_of(const struct rat_slot_head *head)
{
    return atomic_load_explicit(&head->w, memory_order_relaxed); /* in our copy */
}

static uint64_t given_out(const struct rat_slot_head *head)
{
    return atomic_load_explicit(&head->g, memory_order_relaxed) >> 1;
}

enum rat_status rat_live_view_peek(struct rat_live_view *view, uint32_t lane, uint32_t slot,
                                   struct rat_live_interval *out)
{
    struct rat_slot_head first, head;
    *out = (struct rat_live_interval){0};
    if (lane >= RAT_LANES || slot > 1)
        return RAT_CORRUPT;
    enum rat_status status = fetch_slot_head(view, lane, slot, &first);
    if (status == RAT_OK)
        status = fetch_slot_head(view, lane, slot, &head);
    if (status != RAT_OK)
        return status;
    uint64_t w = word_of(&head), g = given_out(&head);
    if (rat_w_seq(w) != rat_w_seq(word_of(&first)) || g != given_out(&first))
        return RAT_BUSY;
    if (rat_w_words(word_of(&first)) < rat_w_words(w))
        w = word_of(&first);
    if (g == 0 || g > UINT64_MAX / 4 || rat_w_seq(w) != (uint16_t)g)
        return RAT_OK; /* given out, and nothing recorded in it yet: what it held is gone */
    if (rat_w_events(w) > rat_w_words(w) || rat_w_words(w) > view->head->slot_bytes / sizeof(uint64_t))
        return RAT_CORRUPT;
    *out = (struct rat_live_interval){
        .sequence = rat_w_words(w) > 0 ? g : 0,
        .words = rat_w_words(w),
        .events = rat_w_events(w),
        .base_ticks = head.base_ticks,
        .opened_stored = head.opened_stored,
        .opened = head.opened,
        .at = (uint64_t *)(void *)(view->memory + view->head->slots_at +
                                   (lane * UINT64_C(2) + slot) * view->head->slot_bytes),
    };
    return RAT_OK;
}

enum rat_status rat_live_view_interval(struct rat_live_view *view, uint32_t lane, uint32_t slot, uint64_t sequence,
                                       uint32_t from, struct rat_live_interval *out)
{
    enum rat_status status = rat_live_view_peek(view, lane, slot, out);
    if (status != RAT_OK)
        return status;
    if (out->sequence != sequence)
        return RAT_BUSY;
    if (out->words < from)
        return RAT_CORRUPT; /* a cursor never goes back */
    uint64_t at = (uint64_t)((uint8_t *)out->at - view->memory) + from * sizeof(uint64_t);
    status = fetch(view, at, (out->words - from) * sizeof(uint64_t));
    RAT_TEST_POINT("live_view.copied");
    struct rat_slot_head after;
    if (status == RAT_OK)
        status = fetch_slot_head(view, lane, slot, &after);
    if (status == RAT_OK && (given_out(&after) != sequence || rat_w_seq(word_of(&after)) != (uint16_t)sequence))
        status = RAT_BUSY; /* it was given out again: words of two intervals may be among them */
    return status;
}

/* ---------------------------------------------------------------- dictionary */

static uint32_t or_none(uint32_t id, uint32_t count)
{
    return id <= count ? id : 0;
}

/* The copy is ours to write to; the view's pointers are const for its other users. */
static void put_right(const struct rat_dict_view *view)
{
    struct rat_name_entry *names = (struct rat_name_entry *)(uintptr_t)view->names;
    for (uint64_t id = 1; id <= view->name_count; id++)
        if (names[id].length > RAT_NAME_BYTES_MAX || names[id].at > view->text_used ||
            names[id].length > view->text_used - names[id].at)
            names[id] = (struct rat_name_entry){0};
    struct rat_frame_entry *frames = (struct rat_frame_entry *)(uintptr_t)view->frames;
    for (uint64_t id = 1; id <= view->frame_count; id++) {
        struct rat_frame_entry *frame = &frames[id];
        frame->owner = or_none(frame->owner, view->name_count);
        frame->method = or_none(frame->method, view->name_count);
        frame->called = or_none(frame->called, view->name_count);
        frame->file = or_none(frame->file, view->name_count);
        frame->kind = or_none(frame->kind, RAT_FRAME_SPECIAL);
    }
    struct rat_context_entry *contexts = (struct rat_context_entry *)(uintptr_t)view->contexts;
    for (uint64_t id = 1; id <= view->context_count; id++) {
        struct rat_context_entry *context = &contexts[id];
        context->kind = or_none(context->kind, RAT_CONTEXT_FIBER);
        context->parent = or_none(context->parent, view->context_count);
        context->name = or_none(context->name, view->name_count);
        context->lane = or_none(context->lane, RAT_LANES);
    }
}

enum rat_status rat_live_view_dict(const struct rat_live_view *view, struct rat_dict_view *out)
{
    uint64_t tables_at = view->head->tables_at;
    if (tables_at % 8 != 0)
        return RAT_CORRUPT;
    enum rat_status status = fetch(view, tables_at, sizeof(struct rat_dict_head));
    if (status == RAT_OK)
        status = rat_dict_view(view->memory, view->length, tables_at, out);
    if (status != RAT_OK)
        return status;
    if (out->frame_count > RAT_EVENT_ID_MAX || out->context_count > RAT_EVENT_ID_MAX ||
        out->name_count > RAT_EVENT_ID_MAX)
        return RAT_CORRUPT;
    const struct {
        const void *from;
        uint64_t length;
    } ranges[] = {
        {out->frames, (out->frame_count + UINT64_C(1)) * sizeof *out->frames},
        {out->contexts, (out->context_count + UINT64_C(1)) * sizeof *out->contexts},
        {out->names, (out->name_count + UINT64_C(1)) * sizeof *out->names},
        {out->text, out->text_used},
    };
    /* A head that was checked is not fetched again: check_head and this keep the ranges away from it. */
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        uint64_t at = (uint64_t)((const uint8_t *)ranges[i].from - view->memory);
        if (at < tables_at + sizeof(struct rat_dict_head) || at >= view->head->slots_at ||
            ranges[i].length > view->head->slots_at - at)
            return RAT_CORRUPT;
        status = fetch(view, at, ranges[i].length);
        if (status != RAT_OK)
            return status;
    }
    put_right(out);
    return RAT_OK;
}

bool rat_live_view_is_other_boot(const struct rat_live_view *view)
{
    struct rat_live_head here;
    rat_live_identify(&here);
    return memcmp(here.boot_id, view->head->boot_id, sizeof here.boot_id) != 0;
}
