#include "deliver/curl_pair.h"

#ifdef RAT_HAS_CURL

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>

/* The lowest free numbers are given first, so between two of a pair nothing is free; but another thread may be closing. */
#define FREE_MAX 8
#define CANDIDATES_MAX 64

/* Would a program inherit it, and is it of a kind that comes in pairs? */
static bool is_open_to_programs(int fd, struct stat *file, int *free)
{
    int flags = fcntl(fd, F_GETFD);
    *free += flags < 0;
    return flags >= 0 && (flags & FD_CLOEXEC) == 0 && fstat(fd, file) == 0 &&
        (S_ISSOCK(file->st_mode) || S_ISFIFO(file->st_mode));
}

static int readable(int fd)
{
    int bytes;
    return ioctl(fd, FIONREAD, &bytes) == 0 ? bytes : -1;
}

/* A pipe's ends are one file; a pair of sockets are two, numbered one after the other. */
static bool find_other(int fd, int *other)
{
    struct stat file, next;
    int free = 0;
    if (!is_open_to_programs(fd, &file, &free))
        return false;
    for (*other = fd + 1; free < FREE_MAX; ++*other)
        if (is_open_to_programs(*other, &next, &free) && next.st_dev == file.st_dev &&
            next.st_ino == file.st_ino + (S_ISSOCK(file.st_mode) ? 1 : 0))
            return true;
    return false;
}

static bool keep(int fd, int *other)
{
    return find_other(fd, other) && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(*other, F_SETFD, FD_CLOEXEC) == 0;
}

int rat_curl_pair_lowest(void)
{
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd;
}

bool rat_curl_pair_of_multi(CURLM *multi, int from, int pair[2])
{
    int candidates[CANDIDATES_MAX], count = 0, free = 0;
    struct stat file;
    for (int fd = from; from >= 0 && free < FREE_MAX && count < CANDIDATES_MAX; fd++)
        if (is_open_to_programs(fd, &file, &free) && readable(fd) == 0)
            candidates[count++] = fd;
    if (count == 0 || rat_curl.multi_wakeup == NULL || rat_curl.multi_wakeup(multi) != CURLM_OK)
        return false;
    for (int i = 0; i < count; i++)
        if (readable(candidates[i]) == 1 && keep(candidates[i], &pair[1])) { /* multi_wait does not mind the byte */
            pair[0] = candidates[i];
            return true;
        }
    return false;
}

void rat_curl_pair_of_look_up(CURLM *multi)
{
    fd_set reads, writes, errors;
    int highest = -1, other;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_ZERO(&errors);
    if (rat_curl.multi_fdset(multi, &reads, &writes, &errors, &highest) != CURLM_OK)
        return;
    for (int fd = 0; fd <= highest && fd < FD_SETSIZE; fd++)
        if (FD_ISSET(fd, &reads))
            (void)keep(fd, &other);
}

#endif
