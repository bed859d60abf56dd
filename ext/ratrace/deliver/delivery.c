#include "deliver/delivery.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/testpoint.h"
#include "deliver/fork_gate.h"

#define SECOND UINT64_C(1000000000)
#define TELL_AFTER 3 /* failures in a row until somebody is told */

void rat_delivery_say(const struct rat_delivery *d, bool warning, const char *format, ...)
{
    if (d->report == NULL)
        return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    d->report(d->user, warning, line);
}

static uint64_t next_random(struct rat_delivery *d)
{
    uint64_t z = d->random += UINT64_C(0x9E3779B97F4A7C15); /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* ---------------------------------------------------------------- which one next */

static int compare(const struct rat_spool_entry *entry, int64_t written_ns, const char *name)
{
    if (entry->written_ns != written_ns)
        return entry->written_ns < written_ns ? -1 : 1;
    return strcmp(entry->name, name);
}

size_t rat_delivery_first(const struct rat_delivery *d, const struct rat_spool_list *list)
{
    for (size_t i = 0; d->cursor[0] != '\0' && i < list->count; i++)
        if (compare(&list->entries[i], d->cursor_ns, d->cursor) > 0)
            return i;
    return 0;
}

/* ---------------------------------------------------------------- failure */

/* Count a failure of this segment, if another was delivered since the last. True: it has had its chances. */
static bool is_hopeless(struct rat_delivery *d, const char *name)
{
    uint64_t hash = rat_check_xxh3(name, strlen(name));
    struct rat_delivery_suspect *suspect = NULL, *mildest = d->suspects;
    for (int i = 0; i < RAT_DELIVERY_SUSPECTS; i++) {
        if (d->suspects[i].failures > 0 && d->suspects[i].name_hash == hash)
            suspect = &d->suspects[i];
        if (d->suspects[i].failures < mildest->failures)
            mildest = &d->suspects[i];
    }
    if (suspect == NULL) {
        *mildest = (struct rat_delivery_suspect){hash, d->counts.delivered, 1};
        return false;
    }
    if (suspect->delivered_at == d->counts.delivered)
        return false;
    suspect->delivered_at = d->counts.delivered;
    if (++suspect->failures < RAT_DELIVERY_CHANCES)
        return false;
    suspect->failures = 0;
    return true;
}

static void note_failure(struct rat_delivery *d, const struct rat_http_reply *reply)
{
    d->counts.failures[reply->failure]++;
    d->counts.last_status = reply->status;
    d->counts.last_failure_ns = rat_clock_ns(CLOCK_REALTIME);
    snprintf(d->counts.last_error, sizeof d->counts.last_error, "%s", reply->text);
}

static void put_off(struct rat_delivery *d, const struct rat_http_reply *reply)
{
    uint64_t wait = rat_retry_delay(++d->counts.failures_in_row, RAT_RETRY_BASE_NS, RAT_RETRY_CAP_NS, next_random(d));
    d->told_to_wait = reply->has_retry_after;
    if (reply->has_retry_after) {
        uint64_t asked = reply->retry_after_s * SECOND + next_random(d) % SECOND; /* they all were asked to come then */
        wait = asked > wait ? asked : wait;
    }
    d->not_before_ns = rat_clock_ns(CLOCK_MONOTONIC) + (uint64_t)((double)wait / d->time_scale);
    d->counts.retried++;
    bool tell = !d->told && d->counts.failures_in_row >= TELL_AFTER;
    d->told |= tell;
    rat_delivery_say(d, tell, "cannot deliver: %s; next try in %.1f s", reply->text, (double)wait / SECOND);
}

static enum rat_delivery_result poison(struct rat_delivery *d, const struct rat_spool_entry *entry, const char *code,
                                       const char *reason)
{
    enum rat_status status = rat_spool_poison(d->spool, entry->name, code);
    d->counts.poisoned++;
    if (status == RAT_OK) {
        rat_delivery_say(d, true, "%s is refused for good (%s); it is now %s/%s/%s-%s", entry->name, reason,
                         d->spool->dir, RAT_SPOOL_POISON, code, entry->name);
        return RAT_DELIVERY_DONE;
    }
    const struct rat_http_reply reply = {.failure = RAT_HTTP_LOCAL};
    rat_delivery_say(d, true, "%s is refused for good (%s), and cannot be moved aside: %s", entry->name, reason,
                     rat_status_text(status));
    put_off(d, &reply);
    return RAT_DELIVERY_FAILED;
}

/* The next attempt is for the segment behind this one. */
static void move_on(struct rat_delivery *d, const struct rat_spool_entry *entry)
{
    snprintf(d->cursor, sizeof d->cursor, "%s", entry->name);
    d->cursor_ns = entry->written_ns;
}

/* Our file, our disk, our memory; the claim is dropped already. */
static enum rat_delivery_result failed_here(struct rat_delivery *d, const struct rat_spool_entry *entry,
                                            enum rat_status status)
{
    struct rat_http_reply reply = {.failure = RAT_HTTP_LOCAL};
    snprintf(reply.text, sizeof reply.text, "%.200s: %s", entry->name, rat_status_text(status));
    note_failure(d, &reply);
    move_on(d, entry);
    put_off(d, &reply);
    return RAT_DELIVERY_FAILED;
}

/* The request failed, or was answered with other than 2xx. */
static enum rat_delivery_result failed(struct rat_delivery *d, const struct rat_spool_entry *entry,
                                       const struct rat_http_reply *reply)
{
    if (reply->failure == RAT_HTTP_STOPPED) {
        rat_spool_leave(d->spool, entry->name);
        return RAT_DELIVERY_STOPPED;
    }
    note_failure(d, reply);
    bool answered = reply->failure == RAT_HTTP_NONE;
    char code[16];
    snprintf(code, sizeof code, answered ? "%u" : "net", reply->status);
    if (answered && rat_verdict(reply->status) == RAT_VERDICT_POISON)
        return poison(d, entry, code, reply->text);
    if (reply->reached) {
        move_on(d, entry);
        if (is_hopeless(d, entry->name))
            return poison(d, entry, code, reply->text);
    }
    rat_spool_leave(d->spool, entry->name);
    put_off(d, reply);
    return RAT_DELIVERY_FAILED;
}

/* ---------------------------------------------------------------- success */

static enum rat_delivery_result delivered(struct rat_delivery *d, const struct rat_spool_entry *entry,
                                          const struct rat_parcel *parcel)
{
    RAT_TEST_POINT("delivery.accepted");
    d->counts.delivered++;
    d->counts.delivered_bytes += parcel->bytes;
    d->counts.last_delivery_ns = rat_clock_ns(CLOCK_REALTIME);
    d->counts.failures_in_row = 0;
    d->not_before_ns = 0;
    d->told_to_wait = false;
    if (d->told)
        rat_delivery_say(d, true, "segments are being delivered again");
    d->told = false;
    enum rat_status status = d->keep ? rat_spool_keep(d->spool, entry->name)
                                     : rat_spool_remove(d->spool, entry->name);
    if (status != RAT_OK) /* it will be delivered again, under the same key */
        return failed_here(d, entry, status);
    rat_delivery_say(d, false, "delivered %s (%" PRIu64 " bytes)", entry->name, parcel->bytes);
    return RAT_DELIVERY_DONE;
}

/* ---------------------------------------------------------------- an attempt */

/* All steps of a segment that was taken. */
static enum rat_delivery_result send_all(struct rat_delivery *d, const struct rat_spool_entry *entry,
                                         const struct rat_parcel *parcel)
{
    for (unsigned step = 0;; step++) {
        struct rat_http_request request;
        rat_http_request_init(&request, "");
        rat_fork_gate_enter(); /* it may sign */
        enum rat_status status = d->target->request(d->target, parcel, step, &request);
        rat_fork_gate_leave();
        request.file = &d->spool->taken;
        struct rat_http_reply reply;
        if (status == RAT_OK)
            rat_http_send(d->http, &request, &reply);
        rat_http_request_free(&request);
        if (status == RAT_END)
            return delivered(d, entry, parcel);
        if (status != RAT_OK) {
            rat_spool_leave(d->spool, entry->name);
            return failed_here(d, entry, status);
        }
        if (reply.status != 0)
            d->counts.statuses[reply.status / 100 < 6 ? reply.status / 100 : 0]++;
        if (reply.failure != RAT_HTTP_NONE || rat_verdict(reply.status) != RAT_VERDICT_ACCEPTED)
            return failed(d, entry, &reply);
        d->counts.finalized += step > 0;
        RAT_TEST_POINT("delivery.step");
    }
}

enum rat_delivery_result rat_delivery_try(struct rat_delivery *d, const struct rat_spool_entry *entry)
{
    int fd;
    uint64_t bytes;
    enum rat_status status = rat_spool_take(d->spool, entry->name, &fd, &bytes);
    if (status == RAT_BUSY) {
        d->counts.busy++;
        return RAT_DELIVERY_BUSY;
    }
    if (status == RAT_NOT_FOUND)
        return RAT_DELIVERY_DONE; /* somebody was faster */
    if (status != RAT_OK)
        return failed_here(d, entry, status);
    struct rat_parcel parcel;
    rat_fork_gate_enter();
    status = rat_parcel_read(fd, entry->name, bytes, d->cancel, &parcel);
    rat_fork_gate_leave();
    if (rat_handle_fd(&d->spool->taken) != fd)
        status = RAT_IO; /* the host closed it: what was read may be any file */
    if (status == RAT_CORRUPT)
        return poison(d, entry, "bad", "this is no segment file");
    if (status != RAT_OK) {
        rat_spool_leave(d->spool, entry->name);
        return status == RAT_END ? RAT_DELIVERY_STOPPED : failed_here(d, entry, status);
    }
    d->counts.attempts++;
    if (d->changed != NULL)
        d->changed(d);
    return send_all(d, entry, &parcel);
}
