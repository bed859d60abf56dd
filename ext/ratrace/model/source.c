#include "model/source.h"

#include <stdlib.h>
#include <string.h>

enum rat_status rat_source_open(const struct rat_source *source, struct rat_segment_reader **reader)
{
    if (!source->path)
        return rat_segment_open_bytes(source->bytes, source->length, reader);
    enum rat_status status = rat_segment_open(source->path, reader);
    size_t length = strlen(source->path), suffix = strlen(RAT_SEGMENT_PART);
    if (status != RAT_NOT_FOUND || length <= suffix ||
        strcmp(source->path + length - suffix, RAT_SEGMENT_PART) != 0)
        return status;
    char *published = strdup(source->path);
    if (!published)
        return RAT_NO_MEMORY;
    published[length - suffix] = '\0';
    status = rat_segment_open(published, reader);
    free(published);
    return status;
}

static enum rat_status identify(struct rat_source *source)
{
    struct rat_segment_reader *reader = NULL;
    enum rat_status status = rat_source_open(source, &reader);
    if (status != RAT_OK)
        return status;
    struct rat_read *read = malloc(sizeof *read);
    if (!read) {
        rat_segment_reader_free(reader);
        return RAT_NO_MEMORY;
    }
    do {
        rat_segment_next(reader, read);
    } while (read->kind != RAT_READ_CHUNK && read->kind != RAT_READ_UNREADABLE && read->kind != RAT_READ_END);
    if (read->kind != RAT_READ_END) {
        const struct rat_chunk_header *header = &read->header;
        source->any = true;
        source->session_hi = header->session_hi;
        source->session_lo = header->session_lo;
        source->segment = header->segment;
        source->start_ns = header->has_info ? header->info.start_ns : header->start.realtime_ns;
    }
    free(read);
    rat_segment_reader_free(reader);
    return RAT_OK;
}

#define COMPARE(a, b) ((a) < (b) ? -1 : (a) > (b))

static int by_session(const struct rat_source *left, const struct rat_source *right)
{
    int order = COMPARE(left->session_hi, right->session_hi);
    return order ? order : COMPARE(left->session_lo, right->session_lo);
}

static int by_segment(const void *a, const void *b)
{
    const struct rat_source *left = a, *right = b;
    int order = by_session(left, right);
    if (!order)
        order = COMPARE(left->segment, right->segment);
    if (!order)
        order = COMPARE(left->start_ns, right->start_ns);
    return order;
}

/* Sessions by their start; all sources of a session carry the same start by then. */
static int by_start(const void *a, const void *b)
{
    const struct rat_source *left = a, *right = b;
    int order = COMPARE(left->start_ns, right->start_ns);
    return order ? order : by_segment(a, b);
}

enum rat_status rat_sources_sort(struct rat_source *sources, size_t count, const struct rat_source **failed)
{
    for (size_t i = 0; i < count; i++) {
        enum rat_status status = identify(&sources[i]);
        if (status != RAT_OK) {
            *failed = &sources[i];
            return status;
        }
    }
    if (count == 0)
        return RAT_OK;
    qsort(sources, count, sizeof *sources, by_segment);
    for (size_t i = 1; i < count; i++)
        if (by_session(&sources[i - 1], &sources[i]) == 0)
            sources[i].start_ns = sources[i - 1].start_ns;
    qsort(sources, count, sizeof *sources, by_start);
    return RAT_OK;
}
