#include "wire/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire/own_files.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

/* ---------------------------------------------------------------- system calls */

static int libc_openat(int dir, const char *name, int flags, mode_t mode)
{
    return openat(dir, name, flags, mode);
}

static int libc_lock(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_SETLK, &whole);
}

static int libc_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
#ifdef SYS_renameat2
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
#else
    errno = ENOSYS;
    return -1;
#endif
}

const struct rat_file_ops rat_file_ops_libc = {
    .openat = libc_openat,
    .lock = libc_lock,
    .pwrite = pwrite,
    .ftruncate = ftruncate,
    .fdatasync = fdatasync,
    .renameat2 = libc_renameat2,
    .linkat = linkat,
    .unlinkat = unlinkat,
};
const struct rat_file_ops *rat_file_ops = &rat_file_ops_libc;

/* A directory to work in, and a path's last part. Everything after this is relative to the directory, so a link put in
 * its place meanwhile leads nobody astray. */
static int open_dir_of(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    char dir[sizeof((struct rat_segment_writer *)0)->path];
    size_t length = slash != NULL ? (size_t)(slash - path) : 0;
    if (length >= sizeof dir) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(dir, path, length);
    dir[length] = '\0';
    const char *where = slash == NULL ? "." : length == 0 ? "/" : dir;
    return rat_file_ops->openat(AT_FDCWD, where, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

/* ---------------------------------------------------------------- create, adopt */

static void forget(struct rat_segment_writer *writer)
{
    writer->fd = -1;
    writer->length = 0;
    writer->ragged = false;
}

/* Register, then lock: from the first moment nobody here may close another descriptor of it. */
static enum rat_status take_lock(int fd)
{
    enum rat_status status = rat_own_file_add(fd);
    if (status != RAT_OK)
        return status;
    if (rat_file_ops->lock(fd) == 0)
        return RAT_OK;
    return errno == EAGAIN || errno == EACCES ? RAT_BUSY : rat_status_from_errno(errno);
}

enum rat_status rat_segment_create(struct rat_segment_writer *writer, const char *dir, const char *name)
{
    forget(writer);
    if (name[0] == '\0' || strchr(name, '/') != NULL)
        return RAT_INVALID;
    int length = snprintf(writer->path, sizeof writer->path, "%s/%s" RAT_SEGMENT_PART, dir, name);
    if (length < 0 || (size_t)length >= sizeof writer->path)
        return RAT_TOO_BIG;
    const char *part;
    int dir_fd = open_dir_of(writer->path, &part);
    if (dir_fd < 0)
        return rat_status_from_errno(errno);
    enum rat_status status = RAT_OK;
    int fd = rat_file_ops->openat(dir_fd, part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        status = rat_status_from_errno(errno);
    } else {
        status = take_lock(fd);
        if (status == RAT_OK) {
            writer->fd = fd;
        } else {
            (void)rat_file_ops->unlinkat(dir_fd, part, 0); /* it is ours, and empty */
            rat_own_file_close(fd);
        }
    }
    close(dir_fd);
    return status;
}

/* The end of the last chunk whose header holds. */
static enum rat_status find_end(int fd, uint64_t *end)
{
    uint8_t *bytes;
    size_t length;
    enum rat_status status = rat_file_read(fd, &bytes, &length);
    if (status != RAT_OK)
        return status;
    struct rat_segment_reader *reader;
    status = rat_segment_open_bytes(bytes, length, &reader);
    if (status == RAT_OK) {
        struct rat_read read;
        *end = 0;
        do {
            rat_segment_next(reader, &read);
            if (read.kind == RAT_READ_CHUNK || read.kind == RAT_READ_UNREADABLE)
                *end = read.at + read.length;
        } while (read.kind != RAT_READ_END);
        rat_segment_reader_free(reader);
    }
    free(bytes);
    return status;
}

static enum rat_status cut(struct rat_segment_writer *writer)
{
    int result;
    do
        result = rat_file_ops->ftruncate(writer->fd, (off_t)writer->length);
    while (result != 0 && errno == EINTR);
    writer->ragged = result != 0;
    return result == 0 ? RAT_OK : rat_status_from_errno(errno);
}

/* May we cut it? A file with a name elsewhere, or of another user, may be anything, put there for us to cut; root
 * finishes what its users left. A second name is ours only if a publishing was cut short (rename_in). */
static bool is_plain_part(int dir, const char *name, const struct stat *file)
{
    if (!S_ISREG(file->st_mode) || (file->st_uid != geteuid() && geteuid() != 0))
        return false;
    if (file->st_nlink == 1)
        return true;
    char published[NAME_MAX + 1];
    struct stat other;
    size_t length = strlen(name), suffix = strlen(RAT_SEGMENT_PART);
    if (length <= suffix || strcmp(name + length - suffix, RAT_SEGMENT_PART) != 0)
        return false;
    snprintf(published, sizeof published, "%.*s", (int)(length - suffix), name);
    return file->st_nlink == 2 && fstatat(dir, published, &other, AT_SYMLINK_NOFOLLOW) == 0 &&
           other.st_dev == file->st_dev && other.st_ino == file->st_ino;
}

/* Does `name` in `dir` lead to the file of `fd`? */
static bool leads_to(int dir, const char *name, int fd)
{
    struct stat there, here;
    return fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &here) == 0 &&
           there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

/* Open and lock a dead owner's file: `*out`, or on failure -1. */
static enum rat_status lock_in(int dir, const char *name, int *out)
{
    *out = -1;
    struct stat file;
    if (fstatat(dir, name, &file, AT_SYMLINK_NOFOLLOW) != 0)
        return rat_status_from_errno(errno);
    if (!is_plain_part(dir, name, &file))
        return RAT_ACCESS;
    if (rat_own_file_is(&file))
        return RAT_BUSY; /* we live */
    int fd = rat_file_ops->openat(dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return rat_status_from_errno(errno);
    enum rat_status status = RAT_NOT_FOUND;
    if (leads_to(dir, name, fd))
        status = take_lock(fd);
    /* again, under the lock: another recovery may have finished and renamed it between */
    if (status == RAT_OK && !leads_to(dir, name, fd))
        status = RAT_NOT_FOUND;
    if (status == RAT_OK)
        *out = fd;
    else
        rat_own_file_close(fd);
    return status;
}

enum rat_status rat_segment_adopt(struct rat_segment_writer *writer, const char *path)
{
    forget(writer);
    if (strlen(path) >= sizeof writer->path)
        return RAT_TOO_BIG;
    memcpy(writer->path, path, strlen(path) + 1);
    const char *name;
    int dir = open_dir_of(path, &name);
    if (dir < 0)
        return rat_status_from_errno(errno);
    enum rat_status status = lock_in(dir, name, &writer->fd);
    close(dir);
    if (status == RAT_OK)
        status = find_end(writer->fd, &writer->length);
    if (status == RAT_OK)
        status = cut(writer);
    if (status != RAT_OK)
        rat_segment_close(writer);
    return status;
}

enum rat_status rat_segment_discard(const char *path)
{
    const char *name;
    int fd, dir = open_dir_of(path, &name);
    if (dir < 0)
        return rat_status_from_errno(errno);
    enum rat_status status = lock_in(dir, name, &fd);
    if (status == RAT_OK) {
        status = rat_file_ops->unlinkat(dir, name, 0) == 0 ? RAT_OK : rat_status_from_errno(errno);
        rat_own_file_close(fd);
    }
    close(dir);
    return status;
}

/* ---------------------------------------------------------------- append, publish */

static enum rat_status write_all(struct rat_segment_writer *writer, const uint8_t *bytes, size_t length)
{
    uint64_t at = writer->length;
    while (length > 0) {
        ssize_t wrote = rat_file_ops->pwrite(writer->fd, bytes, length, (off_t)at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return wrote < 0 ? rat_status_from_errno(errno) : RAT_NO_SPACE;
        bytes += wrote;
        length -= (size_t)wrote;
        at += (uint64_t)wrote;
    }
    return RAT_OK;
}

enum rat_status rat_segment_append(struct rat_segment_writer *writer, const uint8_t *bytes, size_t length)
{
    if (writer->fd < 0)
        return RAT_INVALID;
    if (writer->ragged) {
        enum rat_status status = cut(writer); /* else a shorter chunk would leave the old one's tail behind it */
        if (status != RAT_OK)
            return status;
    }
    enum rat_status status = write_all(writer, bytes, length);
    if (status == RAT_OK)
        writer->length += length;
    else
        (void)cut(writer); /* what the write said is the news; a cut that failed is remembered and tried again */
    return status;
}

enum rat_status rat_segment_sync(struct rat_segment_writer *writer)
{
    if (writer->fd < 0)
        return RAT_INVALID;
    return rat_file_ops->fdatasync(writer->fd) == 0 ? RAT_OK : rat_status_from_errno(errno);
}

/* Not every filesystem knows RENAME_NOREPLACE, and not every one has links. */
static enum rat_status rename_in(int dir, const char *from, const char *to)
{
    if (rat_file_ops->renameat2(dir, from, dir, to, RENAME_NOREPLACE) == 0)
        return RAT_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return rat_status_from_errno(errno);
    if (rat_file_ops->linkat(dir, from, dir, to, 0) == 0) {
        if (rat_file_ops->unlinkat(dir, from, 0) == 0)
            return RAT_OK;
        enum rat_status status = rat_status_from_errno(errno);
        (void)rat_file_ops->unlinkat(dir, to, 0); /* one name or the other, not both */
        return status;
    }
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS)
        return rat_status_from_errno(errno);
    struct stat existing; /* no better way is left; names carry pid and start time, so nobody races for this one */
    if (fstatat(dir, to, &existing, AT_SYMLINK_NOFOLLOW) == 0)
        return RAT_EXISTS;
    return rat_file_ops->renameat2(dir, from, dir, to, 0) == 0 ? RAT_OK : rat_status_from_errno(errno);
}

enum rat_status rat_segment_publish(struct rat_segment_writer *writer)
{
    if (writer->fd < 0)
        return RAT_INVALID;
    size_t length = strlen(writer->path), suffix = strlen(RAT_SEGMENT_PART);
    if (length <= suffix || strcmp(writer->path + length - suffix, RAT_SEGMENT_PART) != 0)
        return RAT_INVALID;
    if (writer->ragged) {
        enum rat_status status = cut(writer); /* only part files may be torn */
        if (status != RAT_OK)
            return status;
    }
    const char *part;
    int dir = open_dir_of(writer->path, &part);
    if (dir < 0)
        return rat_status_from_errno(errno);
    char name[NAME_MAX + 1];
    enum rat_status status = RAT_NOT_FOUND;
    if (strlen(part) <= sizeof name + suffix - 1 && leads_to(dir, part, writer->fd)) {
        memcpy(name, part, strlen(part) - suffix);
        name[strlen(part) - suffix] = '\0';
        status = rename_in(dir, part, name);
    }
    close(dir);
    if (status != RAT_OK)
        return status;
    writer->path[length - suffix] = '\0';
    rat_segment_close(writer);
    return RAT_OK;
}

void rat_segment_close(struct rat_segment_writer *writer)
{
    if (writer->fd >= 0)
        rat_own_file_close(writer->fd);
    forget(writer);
}

bool rat_segment_is_owned(const char *path)
{
    struct stat file;
    if (stat(path, &file) != 0 || !S_ISREG(file.st_mode))
        return false;
    if (rat_own_file_is(&file))
        return true;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    bool owned = fcntl(fd, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
    owned |= fstat(fd, &file) == 0 && rat_own_file_is(&file); /* it became ours meanwhile */
    rat_own_file_close(fd);
    return owned;
}
