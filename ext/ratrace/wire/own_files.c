#include "wire/own_files.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define FILES_MAX 64
#define READ_MAX (UINT64_C(1) << 30) /* no segment is larger */

struct own_file {
    pid_t pid; /* 0 = free */
    int fd;
    unsigned readers;
    bool closing; /* the last reader closes it */
    dev_t dev;
    ino_t ino;
};

static struct own_file files[FILES_MAX];
static _Atomic pid_t holder; /* of the spin lock; another process's pid = left behind by a fork, and free */

static pid_t lock(void)
{
    pid_t self = getpid();
    for (;;) {
        pid_t seen = atomic_load_explicit(&holder, memory_order_relaxed);
        /* acquire: the table as the last holder left it */
        if (seen != self && atomic_compare_exchange_weak_explicit(&holder, &seen, self, memory_order_acquire,
                                                                  memory_order_relaxed))
            return self;
        sched_yield();
    }
}

static void unlock(void)
{
    atomic_store_explicit(&holder, 0, memory_order_release);
}

static struct own_file *find(pid_t self, dev_t dev, ino_t ino)
{
    for (size_t i = 0; i < FILES_MAX; i++)
        if (files[i].pid == self && files[i].dev == dev && files[i].ino == ino)
            return &files[i];
    return NULL;
}

enum rat_status rat_own_file_add(int fd)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return rat_status_from_errno(errno);
    pid_t self = lock();
    enum rat_status status = find(self, file.st_dev, file.st_ino) != NULL ? RAT_BUSY : RAT_NO_MEMORY;
    for (size_t i = 0; i < FILES_MAX && status == RAT_NO_MEMORY; i++) {
        if (files[i].pid == self)
            continue;
        files[i] = (struct own_file){.pid = self, .fd = fd, .dev = file.st_dev, .ino = file.st_ino};
        status = RAT_OK;
    }
    unlock();
    return status;
}

void rat_own_file_close(int fd)
{
    struct stat file;
    bool known = fstat(fd, &file) == 0;
    pid_t self = lock();
    struct own_file *own = known ? find(self, file.st_dev, file.st_ino) : NULL;
    bool close_now = own == NULL || (own->fd == fd && own->readers == 0);
    if (own != NULL && own->fd == fd) {
        own->closing = !close_now;
        if (close_now)
            own->pid = 0;
    }
    unlock();
    if (close_now)
        close(fd);
}

void rat_own_file_remove(int fd)
{
    pid_t self = lock();
    for (size_t i = 0; i < FILES_MAX; i++)
        if (files[i].pid == self && files[i].fd == fd)
            files[i].pid = 0;
    unlock();
}

bool rat_own_file_is(const struct stat *file)
{
    pid_t self = lock();
    bool is = find(self, file->st_dev, file->st_ino) != NULL;
    unlock();
    return is;
}

/* Through the writer's own descriptor: even a duplicate could not be closed without dropping the lock. */
enum rat_status rat_own_file_read(const struct stat *file, uint8_t **out, size_t *length)
{
    pid_t self = lock();
    struct own_file *own = find(self, file->st_dev, file->st_ino);
    if (own != NULL)
        own->readers++;
    unlock();
    if (own == NULL)
        return RAT_NOT_FOUND;
    int fd = own->fd; /* stays: an entry with readers is not given away */
    enum rat_status status = rat_file_read(fd, out, length);
    lock();
    bool close_now = --own->readers == 0 && own->closing;
    if (close_now)
        own->pid = 0;
    unlock();
    if (close_now)
        close(fd);
    return status;
}

enum rat_status rat_file_read(int fd, uint8_t **out, size_t *length)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return rat_status_from_errno(errno);
    uint64_t size = file.st_size > 0 ? (uint64_t)file.st_size : 0;
    if (size > READ_MAX)
        return RAT_TOO_BIG;
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL)
        return RAT_NO_MEMORY;
    size_t have = 0;
    while (have < size) {
        ssize_t got = pread(fd, bytes + have, size - have, (off_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            enum rat_status status = rat_status_from_errno(errno);
            free(bytes);
            return status;
        }
        if (got == 0)
            break; /* it was cut meanwhile */
        have += (size_t)got;
    }
    *out = bytes;
    *length = have;
    return RAT_OK;
}
