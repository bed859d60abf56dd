#include "deliver/spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/testpoint.h"
#include "wire/segment.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define NAME_BYTES 256 /* NAME_MAX and a NUL */
#define PART_QUIET_NS INT64_C(60000000000) /* a younger part file may be somebody's who is about to lock it */

void rat_spool_init(struct rat_spool *spool, const char *dir)
{
    *spool = (struct rat_spool){
        .opened = RAT_HANDLE_NONE, .taken = RAT_HANDLE_NONE, .claims = {.file = RAT_HANDLE_NONE}};
    snprintf(spool->dir, sizeof spool->dir, "%s", dir);
}

void rat_spool_close(struct rat_spool *spool)
{
    rat_handle_close(&spool->opened);
    rat_claims_close(&spool->claims);
}

void rat_spool_in_child(struct rat_spool *spool)
{
    rat_handle_close(&spool->opened);
    rat_handle_close(&spool->taken);
    rat_claims_in_child(&spool->claims);
}

static int current_dir(const struct rat_spool *spool)
{
    return rat_handle_fd(&spool->opened);
}

/* Have the directory open that the path leads to now. */
static enum rat_status open_dir(struct rat_spool *spool)
{
    struct stat here, there;
    if (stat(spool->dir, &there) != 0)
        return rat_status_from_errno(errno);
    int fd = current_dir(spool);
    if (fd >= 0 && fstat(fd, &here) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino)
        return RAT_OK;
    rat_spool_close(spool);
    fd = open(spool->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return rat_status_from_errno(errno);
    rat_handle_hold(&spool->opened, fd);
    return RAT_OK;
}

/* ---------------------------------------------------------------- listing */

/* A name that goes into headers, URLs and lines for people; the recorder makes no others. */
static bool is_segment(const char *name, const char *suffix)
{
    for (const unsigned char *p = (const unsigned char *)name; *p != '\0'; p++)
        if (*p < ' ' || *p == 0x7F)
            return false;
    size_t length = strlen(name), end = strlen(suffix);
    return name[0] != '.' && length > end && strcmp(name + length - end, suffix) == 0;
}

static bool is_ours(const struct stat *file, const struct stat *dir)
{
    return S_ISREG(file->st_mode) && (file->st_uid == geteuid() || file->st_uid == dir->st_uid);
}

static int by_age(const void *a, const void *b)
{
    const struct rat_spool_entry *x = a, *y = b;
    if (x->written_ns != y->written_ns)
        return x->written_ns < y->written_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

static enum rat_status add_entry(struct rat_spool_list *list, size_t *room, const char *name, const struct stat *file)
{
    if (list->count == *room) {
        size_t wanted = *room == 0 ? 64 : *room * 2;
        struct rat_spool_entry *entries = realloc(list->entries, wanted * sizeof *entries);
        if (entries == NULL)
            return RAT_NO_MEMORY;
        list->entries = entries;
        *room = wanted;
    }
    char *copy = strdup(name);
    if (copy == NULL)
        return RAT_NO_MEMORY;
    uint64_t bytes = file->st_size > 0 ? (uint64_t)file->st_size : 0;
    list->entries[list->count++] = (struct rat_spool_entry){
        .name = copy,
        .bytes = bytes,
        .written_ns = (int64_t)file->st_mtim.tv_sec * 1000000000 + file->st_mtim.tv_nsec,
    };
    list->bytes += bytes;
    return RAT_OK;
}

/* Takes `fd`. */
static enum rat_status list_dir(int fd, const char *suffix, struct rat_spool_list *out)
{
    *out = (struct rat_spool_list){0};
    struct stat own;
    DIR *dir = fstat(fd, &own) == 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        enum rat_status status = rat_status_from_errno(errno);
        close(fd);
        return status;
    }
    enum rat_status status = RAT_OK;
    size_t room = 0;
    for (struct dirent *entry; status == RAT_OK && out->count < RAT_SPOOL_LIST_MAX && (entry = readdir(dir)) != NULL;) {
        struct stat file;
        if (is_segment(entry->d_name, suffix) && fstatat(dirfd(dir), entry->d_name, &file, AT_SYMLINK_NOFOLLOW) == 0 &&
            is_ours(&file, &own))
            status = add_entry(out, &room, entry->d_name, &file);
    }
    closedir(dir);
    if (out->count > 0)
        qsort(out->entries, out->count, sizeof *out->entries, by_age);
    return status;
}

static enum rat_status list_in(int dir_fd, const char *suffix, struct rat_spool_list *out)
{
    int fd = openat(dir_fd, ".", DIR_FLAGS); /* a descriptor of its own: it has a position */
    return fd >= 0 ? list_dir(fd, suffix, out) : rat_status_from_errno(errno);
}

enum rat_status rat_spool_list(struct rat_spool *spool, struct rat_spool_list *out)
{
    *out = (struct rat_spool_list){0};
    enum rat_status status = open_dir(spool);
    return status == RAT_OK ? list_in(current_dir(spool), RAT_SEGMENT_SUFFIX, out) : status;
}

void rat_spool_list_free(struct rat_spool_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->entries[i].name);
    free(list->entries);
    *list = (struct rat_spool_list){0};
}

/* ---------------------------------------------------------------- one segment */

enum rat_status rat_spool_take(struct rat_spool *spool, const char *name, int *fd, uint64_t *bytes)
{
    enum rat_status status = rat_claim_take(&spool->claims, current_dir(spool), name);
    if (status != RAT_OK)
        return status;
    RAT_TEST_POINT("spool.claimed");
    struct stat file, dir;
    *fd = openat(current_dir(spool), name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (*fd >= 0)
        rat_handle_hold(&spool->taken, *fd);
    if (*fd < 0 || fstat(*fd, &file) != 0 || fstat(current_dir(spool), &dir) != 0)
        status = rat_status_from_errno(errno);
    else if (!is_ours(&file, &dir))
        status = RAT_ACCESS;
    if (status != RAT_OK) {
        rat_spool_leave(spool, name);
        return status;
    }
    *bytes = (uint64_t)file.st_size;
    return RAT_OK;
}

void rat_spool_leave(struct rat_spool *spool, const char *name)
{
    rat_handle_close(&spool->taken);
    rat_claim_drop(&spool->claims, name);
}

enum rat_status rat_spool_remove(struct rat_spool *spool, const char *name)
{
    enum rat_status status = RAT_OK;
    if (unlinkat(current_dir(spool), name, 0) != 0 && errno != ENOENT)
        status = rat_status_from_errno(errno);
    rat_spool_leave(spool, name);
    return status;
}

static enum rat_status move_to(struct rat_spool *spool, const char *name, const char *folder, const char *to)
{
    enum rat_status status = RAT_OK;
    int dir = current_dir(spool), folder_fd = -1;
    if (mkdirat(dir, folder, 0700) == 0 || errno == EEXIST)
        folder_fd = openat(dir, folder, DIR_FLAGS);
    if (folder_fd < 0 || (renameat(dir, name, folder_fd, to) != 0 && errno != ENOENT))
        status = rat_status_from_errno(errno);
    if (folder_fd >= 0)
        close(folder_fd);
    rat_spool_leave(spool, name);
    return status;
}

enum rat_status rat_spool_keep(struct rat_spool *spool, const char *name)
{
    return move_to(spool, name, RAT_SPOOL_DELIVERED, name);
}

enum rat_status rat_spool_poison(struct rat_spool *spool, const char *name, const char *code)
{
    char to[NAME_BYTES];
    if ((size_t)snprintf(to, sizeof to, "%s-%s", code, name) >= sizeof to)
        snprintf(to, sizeof to, "%s", name); /* the code is worth less than the suffix */
    return move_to(spool, name, RAT_SPOOL_POISON, to);
}

/* ---------------------------------------------------------------- bounds */

struct retention {
    struct rat_spool *spool;
    const struct rat_spool_bounds *bounds;
    int64_t now_ns;
    uint64_t total;
    int folder_fd; /* of drop_other */
    struct rat_spool_drops *drops;
};

static bool exceeds(const struct retention *r, const struct rat_spool_entry *entry, enum rat_spool_bound *bound)
{
    if (r->bounds->age_ns != 0 && r->now_ns > entry->written_ns &&
        (uint64_t)(r->now_ns - entry->written_ns) > r->bounds->age_ns) {
        *bound = RAT_SPOOL_BY_AGE;
        return true;
    }
    *bound = RAT_SPOOL_BY_BYTES;
    return r->bounds->bytes != 0 && r->total > r->bounds->bytes;
}

static bool drop_waiting(struct retention *r, const struct rat_spool_entry *entry)
{
    struct rat_spool *spool = r->spool;
    if (rat_claim_take(&spool->claims, current_dir(spool), entry->name) != RAT_OK)
        return false;
    bool dropped = unlinkat(current_dir(spool), entry->name, 0) == 0;
    rat_claim_drop(&spool->claims, entry->name);
    return dropped;
}

/* Under the lock that a living owner, or who is just finishing it, would have. */
static bool drop_part(struct retention *r, const struct rat_spool_entry *entry)
{
    char path[sizeof r->spool->dir + NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", r->spool->dir, entry->name);
    return r->now_ns - entry->written_ns >= PART_QUIET_NS && rat_segment_discard(path) == RAT_OK;
}

static bool drop_other(struct retention *r, const struct rat_spool_entry *entry)
{
    return unlinkat(r->folder_fd, entry->name, 0) == 0;
}

static void retain_list(struct retention *r, const struct rat_spool_list *list,
                        bool (*drop)(struct retention *, const struct rat_spool_entry *))
{
    for (size_t i = 0; i < list->count; i++) {
        const struct rat_spool_entry *entry = &list->entries[i];
        enum rat_spool_bound bound;
        if (!exceeds(r, entry, &bound))
            break; /* the others are younger */
        if (!drop(r, entry))
            continue;
        r->total -= entry->bytes;
        if (drop == drop_other) {
            r->drops->others++;
        } else {
            r->drops->waiting[bound]++;
            r->drops->waiting_bytes[bound] += entry->bytes;
        }
    }
}

enum rat_status rat_spool_retain(struct rat_spool *spool, const struct rat_spool_bounds *bounds, int64_t now_ns,
                                 struct rat_spool_drops *drops)
{
    if (bounds->bytes == 0 && bounds->age_ns == 0)
        return RAT_OK;
    static const char *const folders[] = {RAT_SPOOL_DELIVERED, RAT_SPOOL_POISON};
    struct rat_spool_list waiting, parts = {0}, others[2] = {{0}, {0}};
    int fd[2] = {-1, -1};
    enum rat_status status = rat_spool_list(spool, &waiting);
    if (status == RAT_OK)
        status = list_in(current_dir(spool), RAT_SEGMENT_SUFFIX RAT_SEGMENT_PART, &parts);
    struct retention r = {
        .spool = spool, .bounds = bounds, .now_ns = now_ns, .total = waiting.bytes + parts.bytes, .drops = drops};
    for (int i = 0; i < 2 && status == RAT_OK; i++) {
        fd[i] = openat(current_dir(spool), folders[i], DIR_FLAGS);
        if (fd[i] < 0)
            continue; /* there is none */
        status = list_in(fd[i], RAT_SEGMENT_SUFFIX, &others[i]);
        r.total += others[i].bytes;
    }
    for (int i = 0; i < 2; i++) {
        r.folder_fd = fd[i];
        if (status == RAT_OK && fd[i] >= 0)
            retain_list(&r, &others[i], drop_other);
        if (fd[i] >= 0)
            close(fd[i]);
        rat_spool_list_free(&others[i]);
    }
    if (status == RAT_OK) {
        retain_list(&r, &parts, drop_part);
        retain_list(&r, &waiting, drop_waiting);
    }
    rat_spool_list_free(&parts);
    rat_spool_list_free(&waiting);
    return status;
}
