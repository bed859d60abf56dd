#include "model/scope.h"

void rat_scope_free(struct rat_scope *scope, struct rat_allowance *allowance)
{
    rat_allowance_free(allowance, scope->names, scope->name_capacity * sizeof *scope->names);
    rat_allowance_free(allowance, scope->frames, scope->frame_capacity * sizeof *scope->frames);
    rat_allowance_free(allowance, scope->bases, scope->base_capacity * sizeof *scope->bases);
    *scope = (struct rat_scope){0};
}

uint32_t rat_scope_name(const struct rat_scope *scope, const struct rat_catalog *catalog, uint32_t id)
{
    if (id == 0)
        return 0;
    uint32_t name = id < scope->name_capacity ? scope->names[id] : 0;
    return name ? name : rat_catalog_lost_name(catalog);
}

static enum rat_status add_names(struct rat_scope *scope, struct rat_allowance *allowance, struct rat_catalog *catalog,
                                 const struct rat_body *body)
{
    for (size_t i = 0; i < body->name_count; i++) {
        const struct rat_body_name *name = &body->names[i];
        if (name->id == 0 || name->id >= RAT_SCOPE_IDS_MAX)
            continue;
        enum rat_status status = rat_allowance_grow(allowance, (void **)&scope->names, &scope->name_capacity,
                                                 (size_t)name->id + 1, sizeof *scope->names);
        if (status == RAT_OK)
            status = rat_catalog_add_name(catalog, name->text, name->length, name->encoding == 1,
                                          &scope->names[name->id]);
        if (status != RAT_OK)
            return status;
    }
    return RAT_OK;
}

enum rat_status rat_scope_add(struct rat_scope *scope, struct rat_allowance *allowance, struct rat_catalog *catalog,
                              const struct rat_body *body)
{
    enum rat_status status = add_names(scope, allowance, catalog, body);
    for (size_t i = 0; status == RAT_OK && i < body->frame_count; i++) {
        const struct rat_frame_entry *entry = &body->frames[i].entry;
        uint32_t id = body->frames[i].id;
        if (id == 0 || id >= RAT_SCOPE_IDS_MAX)
            continue;
        struct rat_catalog_frame frame = {
            .owner = rat_scope_name(scope, catalog, entry->owner),
            .method = rat_scope_name(scope, catalog, entry->method),
            .called = rat_scope_name(scope, catalog, entry->called),
            .file = rat_scope_name(scope, catalog, entry->file),
            .line = entry->line,
            .kind = entry->kind,
        };
        status = rat_allowance_grow(allowance, (void **)&scope->frames, &scope->frame_capacity, (size_t)id + 1,
                                 sizeof *scope->frames);
        if (status == RAT_OK && id == RAT_FRAME_FULL)
            scope->frames[id] = RAT_CATALOG_FULL;
        else if (status == RAT_OK)
            status = rat_catalog_add_frame(catalog, &frame, &scope->frames[id]);
    }
    return status;
}

enum rat_status rat_scope_base(struct rat_scope *scope, struct rat_allowance *allowance, struct rat_catalog *catalog,
                               uint32_t id, uint32_t *frame)
{
    uint32_t plain = rat_scope_frame(scope, id);
    if (plain == RAT_CATALOG_LOST)
        return rat_catalog_base_of(catalog, plain, frame);
    enum rat_status status = rat_allowance_grow(allowance, (void **)&scope->bases, &scope->base_capacity, (size_t)id + 1,
                                             sizeof *scope->bases);
    if (status != RAT_OK)
        return status;
    if (scope->bases[id] == 0)
        status = rat_catalog_base_of(catalog, plain, &scope->bases[id]);
    *frame = scope->bases[id];
    return status;
}
