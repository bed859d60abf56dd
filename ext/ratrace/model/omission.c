#include "model/omission.h"

#include "record/event.h"

/* The site's place, made if need be; NULL = no room for another. */
static struct rat_omission_site *find_site(struct rat_omission *omission, uint32_t number)
{
    uint32_t at = (number * UINT32_C(0x9E3779B1)) >> 20; /* 12 bits */
    while (omission->sites[at].site != 0 && omission->sites[at].site != number)
        at = (at + 1) % RAT_OMISSION_SITES;
    struct rat_omission_site *site = &omission->sites[at];
    if (site->site == 0) {
        if (omission->site_count == RAT_OMISSION_SITES / 2)
            return NULL;
        omission->site_count++;
        site->site = number;
    }
    return site;
}

static enum rat_status begin_span(struct rat_omission *omission, struct rat_allowance *allowance,
                                  struct rat_omission_site *site, uint32_t frame, uint64_t ns)
{
    if (omission->span_count == RAT_OMISSION_SPANS) {
        omission->untold++;
        return RAT_OK;
    }
    void *spans = omission->spans;
    enum rat_status status = rat_allowance_grow(allowance, &spans, &omission->span_capacity, omission->span_count + 1,
                                                sizeof *omission->spans);
    omission->spans = spans;
    if (status != RAT_OK)
        return status;
    omission->spans[omission->span_count++] =
        (struct rat_omission_span){.site = site->site, .frame = frame, .from_ns = ns};
    site->span = (uint32_t)omission->span_count;
    return RAT_OK;
}

enum rat_status rat_omission_add(struct rat_omission *omission, struct rat_allowance *allowance,
                                 const uint64_t *payload, uint32_t frame, uint64_t ns)
{
    uint32_t number = (uint32_t)(payload[0] >> 32), state = (uint32_t)(payload[1] >> 32);
    uint64_t count = payload[2];
    if (omission->sites == NULL)
        omission->sites =
            rat_allowance_resize(allowance, NULL, 0, RAT_OMISSION_SITES * sizeof *omission->sites);
    if (omission->sites == NULL)
        return RAT_NO_MEMORY;
    struct rat_omission_site *site = number != 0 ? find_site(omission, number) : NULL;
    if (site == NULL) {
        omission->untold++;
        return RAT_OK;
    }
    enum rat_status status = RAT_OK;
    uint64_t more = count > site->count ? count - site->count : 0;
    if (more > 0 && site->span == 0) /* its closing was lost, or lies in a segment not given */
        status = begin_span(omission, allowance, site, frame, site->ns != 0 ? site->ns : ns);
    if (more > 0 && site->span != 0) {
        struct rat_omission_span *span = &omission->spans[site->span - 1];
        span->left_out += more;
        span->to_ns = state == RAT_GATE_OPEN ? ns : 0;
    }
    if (site->span != 0 && state == RAT_GATE_OPEN) {
        omission->spans[site->span - 1].to_ns = ns;
        site->span = 0;
    }
    if (status == RAT_OK && state == RAT_GATE_CLOSED && site->span == 0)
        status = begin_span(omission, allowance, site, frame, ns);
    omission->left_out += more;
    site->count += more;
    site->ns = ns;
    return status;
}

void rat_omission_free(struct rat_omission *omission, struct rat_allowance *allowance)
{
    if (omission->sites != NULL)
        rat_allowance_free(allowance, omission->sites, RAT_OMISSION_SITES * sizeof *omission->sites);
    rat_allowance_free(allowance, omission->spans, omission->span_capacity * sizeof *omission->spans);
    *omission = (struct rat_omission){0};
}
