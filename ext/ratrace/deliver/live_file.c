#include "deliver/live_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/check.h"
#include "record/dictionary.h"
#include "wire/encoder.h"

#define OWN_FILES 16
#define PAGE UINT64_C(4096)
#define RESERVE_BYTES (UINT64_C(256) << 10) /* in one call: some 30 us */

/* ---------------------------------------------------------------- own files
 *
 * A slot is claimed with the pid (compare and swap), so that entries a child inherited are not its own and can be taken
 * over; the id's halves are stored before the name can be seen in the directory. */
static struct {
    _Atomic pid_t pid;
    _Atomic uint64_t hi, lo;
} own[OWN_FILES];

static bool own_add(uint64_t hi, uint64_t lo)
{
    pid_t me = getpid();
    for (int i = 0; i < OWN_FILES; i++) {
        pid_t holder = atomic_load_explicit(&own[i].pid, memory_order_acquire);
        if (holder == me || !atomic_compare_exchange_strong(&own[i].pid, &holder, me))
            continue;
        atomic_store_explicit(&own[i].lo, lo, memory_order_relaxed);
        atomic_store_explicit(&own[i].hi, hi, memory_order_release); /* seen together by is_own */
        return true;
    }
    return false;
}

static void own_remove(uint64_t hi, uint64_t lo)
{
    pid_t me = getpid();
    for (int i = 0; i < OWN_FILES; i++) {
        if (atomic_load_explicit(&own[i].pid, memory_order_acquire) != me ||
            atomic_load_explicit(&own[i].hi, memory_order_relaxed) != hi ||
            atomic_load_explicit(&own[i].lo, memory_order_relaxed) != lo)
            continue;
        atomic_store_explicit(&own[i].hi, 0, memory_order_relaxed);
        atomic_store_explicit(&own[i].lo, 0, memory_order_relaxed);
        atomic_store_explicit(&own[i].pid, 0, memory_order_release); /* free for own_add, zeroed */
    }
}

void rat_live_name(uint64_t session_hi, uint64_t session_lo, char out[40])
{
    snprintf(out, 40, "%016" PRIx64 "%016" PRIx64 RAT_LIVE_SUFFIX, session_hi, session_lo);
}

bool rat_live_is_own(const char *name)
{
    pid_t me = getpid();
    for (int i = 0; i < OWN_FILES; i++) {
        if (atomic_load_explicit(&own[i].pid, memory_order_acquire) != me)
            continue;
        char mine[40];
        uint64_t hi = atomic_load_explicit(&own[i].hi, memory_order_acquire);
        rat_live_name(hi, atomic_load_explicit(&own[i].lo, memory_order_relaxed), mine);
        if (strcmp(mine, name) == 0)
            return true;
    }
    return false;
}

/* ---------------------------------------------------------------- directory */

enum rat_status rat_live_dir(const char *wanted, char *out, size_t length)
{
    if (wanted == NULL)
        wanted = getenv("RATRACE_LIVE_DIR");
    int need = wanted != NULL && wanted[0] != '\0'
        ? snprintf(out, length, "%s", wanted)
        : snprintf(out, length, "/dev/shm/ratrace-%u", (unsigned)geteuid());
    return need < 0 || (size_t)need >= length ? RAT_TOO_BIG : RAT_OK;
}

int rat_live_dir_open(const char *dir, bool create, char *why, size_t why_length)
{
    if (create && mkdir(dir, 0700) != 0 && errno != EEXIST) {
        snprintf(why, why_length, "cannot make %s: %s", dir, strerror(errno));
        return -1;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat found;
    if (fd < 0 || fstat(fd, &found) != 0) {
        snprintf(why, why_length, "cannot open %s: %s", dir, strerror(errno));
    } else if (found.st_uid != geteuid()) {
        snprintf(why, why_length, "%s belongs to user %u", dir, (unsigned)found.st_uid);
    } else if ((found.st_mode & 077) != 0) {
        snprintf(why, why_length, "%s is open to others: its mode must be 0700", dir);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool is_tmpfs(int fd)
{
    struct statfs found;
    return fstatfs(fd, &found) == 0 && (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC);
}

/* ---------------------------------------------------------------- identity */

static void random_bytes(void *out, size_t length)
{
    if (getrandom(out, length, GRND_NONBLOCK) == (ssize_t)length)
        return;
    /* No entropy yet, or no such call: the ids need only differ from those of other processes, not be secret. */
    struct {
        uint64_t realtime, monotonic, ticks, address, round;
        pid_t pid;
    } mix = {
        .realtime = rat_clock_ns(CLOCK_REALTIME),
        .monotonic = rat_clock_ns(CLOCK_MONOTONIC),
        .address = (uintptr_t)&mix,
        .pid = getpid(),
    };
    for (size_t at = 0; at < length; at += sizeof mix.ticks) {
        mix.round++;
        uint64_t hash = rat_check_xxh3(&mix, sizeof mix);
        memcpy((uint8_t *)out + at, &hash, length - at < sizeof hash ? length - at : sizeof hash);
    }
}

/* 16 bytes of "xxxxxxxx-xxxx-…\n"; zeros where the kernel does not say. */
static void read_boot_id(uint8_t out[16])
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text) : -1;
    if (fd >= 0)
        close(fd);
    int digits = 0;
    for (ssize_t i = 0; i < length && digits < 32; i++) {
        char c = text[i];
        int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (value < 0)
            continue;
        out[digits / 2] = (uint8_t)(out[digits / 2] << 4 | value);
        digits++;
    }
}

void rat_live_identify(struct rat_live_head *head)
{
    memset(head, 0, sizeof *head);
    uint64_t ids[3];
    random_bytes(ids, sizeof ids);
    head->session_hi = ids[0];
    head->session_lo = ids[1];
    memcpy(head->sync, RAT_SYNC_CONSTANT, 8);
    memcpy(head->sync + 8, &ids[2], 8);
    read_boot_id(head->boot_id);
    head->pid = (uint32_t)getpid();
    if (gethostname(head->host, sizeof head->host - 1) != 0 || head->host[0] == '\0')
        strcpy(head->host, "unknown");
}

/* ---------------------------------------------------------------- memory */

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void lay_out(struct rat_live_head *head)
{
    head->version = RAT_LIVE_VERSION;
    head->head_bytes = sizeof *head;
    head->lanes_at = page_up(sizeof *head);
    head->tables_at = head->lanes_at + page_up(RAT_LANES * sizeof(struct rat_lane_head));
    head->text_at = head->tables_at + page_up(rat_dict_tables_bytes(NULL));
    head->slots_at = head->text_at + page_up(rat_dict_text_bytes(NULL));
    head->total_bytes = head->slots_at + RAT_LANES * 2u * head->slot_bytes;
}

static bool lock_whole(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_SETLK, &lock) == 0;
}

static bool is_same_file(const struct rat_live_file *live, int fd)
{
    struct stat found;
    return fd >= 0 && fstat(fd, &found) == 0 && found.st_dev == live->device && found.st_ino == live->inode;
}

/* In pieces: many a kernel undoes a call on tmpfs that a signal interrupts, and where a profiler's timer is quicker than
 * the call, none for all of it would ever succeed. */
enum rat_status rat_live_reserve(void *owner, uint64_t at, uint64_t length)
{
    struct rat_live_file *live = owner;
    if (at > live->length || length > live->length - at)
        return RAT_INVALID;
    if (live->path[0] == '\0')
        return RAT_OK; /* anonymous memory: the kernel gives it when it is touched */
    int fd = live->fd;
    if (!is_same_file(live, fd))
        return RAT_IO;
    for (uint64_t done = 0, piece; done < length;) {
        piece = length - done < RESERVE_BYTES ? length - done : RESERVE_BYTES;
        if (fallocate(fd, 0, (off_t)(at + done), (off_t)piece) == 0) {
            done += piece;
        } else if (errno != EINTR) {
            enum rat_status status = rat_status_from_errno(errno);
            if (done > 0)
                (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)done);
            return status;
        }
    }
    return RAT_OK;
}

static uint64_t slots_at(const struct rat_live_head *head, uint32_t index)
{
    return head->slots_at + index * 2u * head->slot_bytes;
}

enum rat_status rat_live_reserve_slots(struct rat_live_file *live, uint32_t index, uint64_t **out)
{
    const struct rat_live_head *head = rat_live_head(live);
    if (index >= RAT_LANES)
        return RAT_INVALID;
    uint64_t at = slots_at(head, index);
    *out = (uint64_t *)(void *)(live->mapping + at);
    return rat_live_reserve(live, at, 2 * head->slot_bytes);
}

/* The file, sized, locked, reserved and mapped; false with the reason. */
static bool create_in(struct rat_live_file *live, const char *dir, const struct rat_live_head *head)
{
    char *why = live->why_anonymous;
    size_t room = sizeof live->why_anonymous;
    int dir_fd = rat_live_dir_open(dir, true, why, room);
    if (dir_fd < 0)
        return false;
    char name[40];
    rat_live_name(head->session_hi, head->session_lo, name);
    bool listed = false, created = false;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < live->length) { /* else SIGXFSZ ends the host */
        snprintf(why, room, "the file size limit of this process is below %" PRIu64 " MiB", live->length >> 20);
        goto cleanup;
    }
    if (!is_tmpfs(dir_fd)) {
        snprintf(why, room, "%s is not on tmpfs", dir);
        goto cleanup;
    }
    if ((size_t)snprintf(live->path, sizeof live->path, "%s/%s", dir, name) >= sizeof live->path) {
        snprintf(why, room, "the path of the live directory is too long");
        goto cleanup;
    }
    listed = own_add(head->session_hi, head->session_lo);
    if (!listed) {
        snprintf(why, room, "this process has %d live files already", OWN_FILES);
        goto cleanup;
    }
    live->fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct stat found;
    if (live->fd < 0 || fstat(live->fd, &found) != 0) {
        snprintf(why, room, "cannot create a file in %s: %s", dir, strerror(errno));
        created = live->fd >= 0;
        goto cleanup;
    }
    created = true;
    live->device = found.st_dev;
    live->inode = found.st_ino;
    if (!lock_whole(live->fd) || ftruncate(live->fd, (off_t)live->length) != 0) {
        snprintf(why, room, "cannot lock and size a file in %s: %s", dir, strerror(errno));
        goto cleanup;
    }
    if (rat_live_reserve(live, 0, head->tables_at) != RAT_OK ||
        rat_live_reserve(live, slots_at(head, RAT_LANE_MAIN), 2 * head->slot_bytes) != RAT_OK) {
        snprintf(why, room, "no room in %s for %" PRIu64 " KiB", dir, (head->tables_at + 2 * head->slot_bytes) >> 10);
        goto cleanup;
    }
    live->mapping = mmap(NULL, live->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, live->fd, 0);
    if (live->mapping == MAP_FAILED)
        snprintf(why, room, "cannot map a file of %" PRIu64 " MiB: %s", live->length >> 20, strerror(errno));

cleanup:
    if (live->mapping == MAP_FAILED) {
        if (created)
            unlinkat(dir_fd, name, 0);
        if (live->fd >= 0)
            close(live->fd);
        if (listed)
            own_remove(head->session_hi, head->session_lo);
        live->fd = -1;
        live->path[0] = '\0';
    }
    close(dir_fd);
    return live->mapping != MAP_FAILED;
}

enum rat_status rat_live_create(struct rat_live_file *live, const char *dir, const struct rat_live_head *template)
{
    *live = (struct rat_live_file){.mapping = MAP_FAILED, .fd = -1};
    if (template->slot_bytes < RAT_SLOT_BYTES_MIN || template->slot_bytes > RAT_SLOT_BYTES_MAX ||
        template->slot_bytes % PAGE != 0)
        return RAT_INVALID;
    struct rat_live_head head;
    memcpy(&head, template, sizeof head);
    lay_out(&head);
    live->length = head.total_bytes;
    if (!create_in(live, dir, &head)) {
        live->mapping = mmap(NULL, live->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                             -1, 0);
        if (live->mapping == MAP_FAILED)
            return RAT_NO_MEMORY;
    }
    (void)madvise(live->mapping, live->length, MADV_DONTFORK); /* cannot fail for a whole mapping of ours */
    atomic_store_explicit(&head.magic, 0, memory_order_relaxed);
    memcpy(live->mapping, &head, sizeof head);
    return RAT_OK;
}

void rat_live_publish(struct rat_live_file *live)
{
    /* release: whoever sees the magic sees the head, the lock was taken long before */
    atomic_store_explicit(&rat_live_head(live)->magic, RAT_LIVE_MAGIC, memory_order_release);
}

bool rat_live_hold(struct rat_live_file *live)
{
    if (live->path[0] == '\0' || is_same_file(live, live->fd))
        return live->path[0] != '\0';
    live->fd = open(live->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (is_same_file(live, live->fd) && lock_whole(live->fd))
        return true;
    if (live->fd >= 0)
        close(live->fd);
    live->fd = -1;
    return false;
}

void rat_live_close(struct rat_live_file *live, bool keep)
{
    uint64_t hi = rat_live_head(live)->session_hi, lo = rat_live_head(live)->session_lo;
    if (!live->shared)
        munmap(live->mapping, live->length);
    if (live->path[0] == '\0')
        return;
    struct stat found;
    if (!keep && stat(live->path, &found) == 0 && found.st_dev == live->device && found.st_ino == live->inode)
        unlink(live->path);
    if (is_same_file(live, live->fd))
        close(live->fd);
    live->fd = -1;
    own_remove(hi, lo);
}

void rat_live_abandon(struct rat_live_file *live)
{
    if (live->path[0] != '\0' && is_same_file(live, live->fd))
        close(live->fd);
    live->fd = -1;
}
