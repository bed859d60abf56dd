#include "deliver/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

static int set_lock(int fd, const char *name, short type)
{
    struct flock byte = {
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = (off_t)(rat_check_xxh3(name, strlen(name)) >> 2),
        .l_len = 1,
    };
    int result = fcntl(fd, F_OFD_SETLK, &byte);
    if (result != 0 && errno == EINVAL)
        result = fcntl(fd, F_SETLK, &byte);
    return result;
}

/* Is the file we have open still the one everybody else would open? */
static bool is_current(int fd, int dir_fd)
{
    struct stat here, there;
    return fd >= 0 && fstat(fd, &here) == 0 && fstatat(dir_fd, RAT_CLAIMS_NAME, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

static enum rat_status open_file(struct rat_claims *claims, int dir_fd)
{
    rat_claims_close(claims);
    int fd = openat(dir_fd, RAT_CLAIMS_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        return rat_status_from_errno(errno);
    struct stat file, dir;
    enum rat_status status = RAT_OK;
    if (fstat(fd, &file) != 0 || fstat(dir_fd, &dir) != 0)
        status = rat_status_from_errno(errno);
    else if (!S_ISREG(file.st_mode) || (file.st_uid != geteuid() && file.st_uid != dir.st_uid))
        status = RAT_ACCESS;
    else if (geteuid() == 0 && file.st_uid == 0 && dir.st_uid != 0)
        (void)!fchown(fd, dir.st_uid, dir.st_gid); /* root cleans up beside a service: the service must get in, too */
    if (status != RAT_OK)
        close(fd);
    else
        rat_handle_hold(&claims->file, fd);
    return status;
}

enum rat_status rat_claim_take(struct rat_claims *claims, int dir_fd, const char *name)
{
    for (int tries = 0; tries < 3; tries++) {
        if (!is_current(rat_handle_fd(&claims->file), dir_fd)) {
            enum rat_status status = open_file(claims, dir_fd);
            if (status != RAT_OK)
                return status;
        }
        int fd = rat_handle_fd(&claims->file);
        if (set_lock(fd, name, F_WRLCK) != 0)
            return errno == EAGAIN || errno == EACCES ? RAT_BUSY : rat_status_from_errno(errno);
        if (is_current(fd, dir_fd))
            return RAT_OK;
    }
    return RAT_BUSY;
}

void rat_claim_drop(struct rat_claims *claims, const char *name)
{
    int fd = rat_handle_fd(&claims->file);
    if (fd >= 0)
        (void)set_lock(fd, name, F_UNLCK);
}

void rat_claims_close(struct rat_claims *claims)
{
    rat_handle_close(&claims->file);
}

void rat_claims_in_child(struct rat_claims *claims)
{
    rat_claims_close(claims);
}
