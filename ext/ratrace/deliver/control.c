#include "deliver/control.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

#define BACKLOG 8
#define SWEPT_MAX 256 /* names looked at for dead processes' sockets */

/* ---------------------------------------------------------------- addresses */

/* The address of `name` (at most 40 bytes) in the directory; `dir_fd` must stay open as long as it is used. */
static socklen_t address_of(struct sockaddr_un *address, const char *dir, int dir_fd, const char *name)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int need = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", dir, name);
    if (need < 0 || (size_t)need >= sizeof address->sun_path)
        snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/%.40s", dir_fd, name);
    return sizeof *address;
}

/* Does somebody listen there? */
static bool is_answered(const char *dir, int dir_fd, const char *name)
{
    struct sockaddr_un address;
    socklen_t length = address_of(&address, dir, dir_fd, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true; /* unknown: leave it alone */
    int failed = connect(fd, (const struct sockaddr *)&address, length) == 0 ? 0 : errno;
    close(fd);
    return failed != ECONNREFUSED && failed != ENOENT;
}

static bool is_our_socket(int dir_fd, const char *name)
{
    struct stat file;
    return fstatat(dir_fd, name, &file, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(file.st_mode) &&
           file.st_uid == geteuid();
}

/* "ratrace-<digits>.sock", of a pid */
static bool is_socket_name(const char *name)
{
    static const char before[] = "ratrace-", behind[] = ".sock";
    if (strncmp(name, before, sizeof before - 1) != 0)
        return false;
    const char *digits = name + sizeof before - 1, *end = digits;
    while (isdigit((unsigned char)*end))
        end++;
    return end > digits && end - digits <= 10 && strcmp(end, behind) == 0;
}

/* Remove what dead processes of ours left. */
static void sweep(const char *dir, int dir_fd)
{
    DIR *listing = fdopendir(openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (listing == NULL)
        return;
    const struct dirent *entry;
    for (int seen = 0; seen < SWEPT_MAX && (entry = readdir(listing)) != NULL;) {
        if (!is_socket_name(entry->d_name) || !is_our_socket(dir_fd, entry->d_name))
            continue;
        seen++;
        if (!is_answered(dir, dir_fd, entry->d_name))
            (void)unlinkat(dir_fd, entry->d_name, 0);
    }
    closedir(listing);
}

/* ---------------------------------------------------------------- open and close */

static enum rat_status listen_in(struct rat_control *control, const char *dir, int dir_fd)
{
    char name[40], early[48];
    snprintf(name, sizeof name, "ratrace-%ld.sock", (long)getpid());
    snprintf(early, sizeof early, "%s.new", name);
    if ((size_t)snprintf(control->path, sizeof control->path, "%s/%s", dir, name) >= sizeof control->path)
        return RAT_TOO_BIG;
    sweep(dir, dir_fd);
    struct stat file;
    if (fstatat(dir_fd, name, &file, AT_SYMLINK_NOFOLLOW) == 0)
        return S_ISSOCK(file.st_mode) ? RAT_BUSY : RAT_EXISTS;
    if (is_our_socket(dir_fd, early))
        (void)unlinkat(dir_fd, early, 0);
    control->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (control->fd < 0)
        return rat_status_from_errno(errno);
    struct sockaddr_un address;
    socklen_t length = address_of(&address, dir, dir_fd, early);
    /* the file takes its mode from the socket, so there is no moment in which it is open to others */
    if (fchmod(control->fd, 0600) != 0 || bind(control->fd, (const struct sockaddr *)&address, length) != 0)
        return rat_status_from_errno(errno);
    if (listen(control->fd, BACKLOG) != 0 || fstat(control->fd, &file) != 0 ||
        renameat(dir_fd, early, dir_fd, name) != 0) {
        enum rat_status status = rat_status_from_errno(errno);
        (void)unlinkat(dir_fd, early, 0);
        return status;
    }
    control->device = file.st_dev;
    control->inode = file.st_ino;
    if (fstatat(dir_fd, name, &file, AT_SYMLINK_NOFOLLOW) == 0) {
        control->file_device = file.st_dev;
        control->file_inode = file.st_ino;
    }
    return RAT_OK;
}

enum rat_status rat_control_open(struct rat_control *control, const char *dir, char *why, size_t why_length)
{
    *control = (struct rat_control){.fd = -1, .client = RAT_HANDLE_NONE};
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum rat_status status = dir_fd >= 0 ? listen_in(control, dir, dir_fd) : rat_status_from_errno(errno);
    if (dir_fd >= 0)
        close(dir_fd);
    if (status == RAT_OK)
        return RAT_OK;
    snprintf(why, why_length, "cannot listen at %s: %s", *control->path ? control->path : dir,
             status == RAT_BUSY     ? "another process of this number answers there; give each container its own directory"
             : status == RAT_EXISTS ? "something else lies there; remove it"
                                    : rat_status_text(status));
    if (control->fd >= 0)
        close(control->fd);
    control->fd = -1;
    control->path[0] = '\0';
    return status;
}

/* The host may have closed the descriptor, and the number may be its own by now. */
static bool is_ours(const struct rat_control *control)
{
    struct stat file;
    return control->fd >= 0 && fstat(control->fd, &file) == 0 && file.st_dev == control->device &&
           file.st_ino == control->inode;
}

void rat_control_abandon(struct rat_control *control)
{
    rat_handle_close(&control->client);
    if (is_ours(control))
        close(control->fd);
    control->fd = -1;
    control->path[0] = '\0';
}

void rat_control_close(struct rat_control *control)
{
    struct stat file;
    if (control->path[0] != '\0' && lstat(control->path, &file) == 0 && file.st_dev == control->file_device &&
        file.st_ino == control->file_inode)
        unlink(control->path);
    rat_control_abandon(control);
}

/* ---------------------------------------------------------------- requests */

/* Poll until `deadline_ns`; false when it has passed. A signal only means to look at the clock again. */
static bool ready_by(int fd, short events, uint64_t deadline_ns)
{
    while (fd >= 0) {
        uint64_t now = rat_clock_ns(CLOCK_MONOTONIC);
        if (now >= deadline_ns)
            return false;
        struct pollfd polled = {.fd = fd, .events = events};
        int ready = poll(&polled, 1, (int)((deadline_ns - now) / 1000000u) + 1);
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
    return false;
}

static uint64_t patience(void)
{
    return rat_clock_ns(CLOCK_MONOTONIC) + RAT_CONTROL_PATIENCE_MS * UINT64_C(1000000);
}

static bool is_our_user(int client)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && length == sizeof peer &&
           peer.uid == geteuid();
}

/* A line of printable bytes, without its end. */
static bool read_request(const struct rat_handle *client, char request[RAT_CONTROL_REQUEST_MAX])
{
    size_t have = 0;
    uint64_t deadline = patience();
    while (have < RAT_CONTROL_REQUEST_MAX && ready_by(rat_handle_fd(client), POLLIN, deadline)) {
        ssize_t got = recv(rat_handle_fd(client), request + have, RAT_CONTROL_REQUEST_MAX - have, 0);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return false;
        for (size_t end = have + (size_t)got; have < end; have++) {
            if (request[have] == '\n') {
                request[have] = '\0';
                return true;
            }
            if (!isprint((unsigned char)request[have]))
                return false;
        }
    }
    return false;
}

enum rat_status rat_control_wait(struct rat_control *control, int timeout_ms, char request[RAT_CONTROL_REQUEST_MAX])
{
    rat_handle_close(&control->client);
    if (!is_ours(control)) {
        control->fd = -1;
        return RAT_IO;
    }
    struct pollfd polled = {.fd = control->fd, .events = POLLIN};
    if (poll(&polled, 1, timeout_ms) <= 0)
        return RAT_END;
    int client = accept4(control->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            (void)poll(NULL, 0, timeout_ms); /* no descriptor is free: it still waits, and we would spin */
        return RAT_END;
    }
    rat_handle_hold(&control->client, client);
    if (is_our_user(client) && read_request(&control->client, request))
        return RAT_OK;
    rat_handle_close(&control->client);
    return RAT_END;
}

void rat_control_reply(struct rat_control *control, const char *bytes, size_t length)
{
    uint64_t deadline = patience();
    while (length > 0 && ready_by(rat_handle_fd(&control->client), POLLOUT, deadline)) {
        ssize_t sent = send(rat_handle_fd(&control->client), bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (sent < 0)
            break;
        bytes += sent;
        length -= (size_t)sent;
    }
    rat_handle_close(&control->client);
}
