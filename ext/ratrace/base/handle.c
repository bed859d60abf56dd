#include "base/handle.h"

#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_ours(const struct rat_handle *handle, int fd)
{
    struct stat file;
    return fd >= 0 && fstat(fd, &file) == 0 && file.st_dev == handle->device && file.st_ino == handle->inode;
}

void rat_handle_hold(struct rat_handle *handle, int fd)
{
    struct stat file = {0};
    (void)fstat(fd, &file); /* of a descriptor we just got */
    handle->device = file.st_dev;
    handle->inode = file.st_ino;
    atomic_store_explicit(&handle->fd, fd, memory_order_release); /* whoever sees it knows the file */
}

int rat_handle_fd(const struct rat_handle *handle)
{
    int fd = atomic_load_explicit(&handle->fd, memory_order_acquire);
    return is_ours(handle, fd) ? fd : -1;
}

void rat_handle_close(struct rat_handle *handle)
{
    int fd = atomic_exchange_explicit(&handle->fd, -1, memory_order_acquire);
    if (is_ours(handle, fd))
        close(fd);
}
