#include "ruby/rb_agent.h"

#include <pthread.h>
#include <ruby/ractor.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ruby/rb_name.h"
#include "ruby/rb_pulse.h"

#define MAPPED                                                                                     \
    (2 * RB_RAT_PAGE + RB_RAT_CACHE * sizeof(struct rb_rat_cached) + RB_RAT_C_CACHE * sizeof(struct rb_rat_c_cached))

_Static_assert(sizeof(struct rb_rat_hot) <= RB_RAT_PAGE, "the hot part lies in one page");

struct rb_rat_agent *rb_rat_main_agent;

/* Ractors' agents that nobody uses, and all there are (for the fork handler and the GC). */
#define AGENTS_MAX RAT_LANES
static struct rb_rat_agent *agents[AGENTS_MAX];
static _Atomic bool taken[AGENTS_MAX]; /* set with the lock; cleared anywhere, by a GC, too */
static int agent_count;
static pthread_mutex_t agents_lock = PTHREAD_MUTEX_INITIALIZER;

static rb_ractor_local_key_t current_key;

/* ---------------------------------------------------------------- the sweeper */

void (*rb_rat_agent_on_gc)(void);

/* Addresses of fibers and method entries are reused after a GC, minor ones included. The mark function of an object
 * without write barriers runs in every GC, because such an object is always on the remembered list; nothing else does.
 * It also keeps the agents' objects alive: the VM's lists of such things are not for several Ractors at once. */
static void sweeper_mark(void *data)
{
    (void)data;
    for (int i = 0; i < agent_count; i++) {
        rb_gc_mark(agents[i]->odd);
        rb_gc_mark(rb_rat_names_keeper(agents[i]->names));
        rb_rat_agent_forget(agents[i]);
    }
    rb_rat_pulse_look();
    if (rb_rat_agent_on_gc != NULL)
        rb_rat_agent_on_gc();
}

static const rb_data_type_t sweeper_type = {
    .wrap_struct_name = "ratrace/sweeper",
    .function = {.dmark = sweeper_mark},
};

void rb_rat_agent_forget(struct rb_rat_agent *agent)
{
    memset(agent->cache, 0, RB_RAT_CACHE * sizeof *agent->cache);
    memset(agent->c_cache, 0, RB_RAT_C_CACHE * sizeof *agent->c_cache);
    agent->hot->recorder.ec = 0;
}

/* ---------------------------------------------------------------- agents */

static bool agent_add(struct rb_rat_agent *agent)
{
    pthread_mutex_lock(&agents_lock);
    bool room = agent_count < AGENTS_MAX;
    if (room) {
        agents[agent_count] = agent;
        taken[agent_count] = true;
        agent_count++; /* last: from here on each GC marks its objects */
    }
    pthread_mutex_unlock(&agents_lock);
    return room;
}

/* Allocates, so not with the lock: a GC waits for all Ractors, and one that waits for a lock does not halt for it. */
static struct rb_rat_agent *agent_new(uint32_t lane)
{
    VALUE odd = rb_obj_hide(rb_ary_new());
    struct rb_rat_names *names = rb_rat_names_new();
    VALUE keeper = names != NULL ? rb_rat_names_keeper(names) : Qnil;
    struct rb_rat_agent *agent = calloc(1, sizeof *agent);
    uint8_t *memory = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (names == NULL || agent == NULL || memory == MAP_FAILED) {
        free(agent);
        return NULL;
    }
#ifdef MADV_WIPEONFORK
    (void)madvise(memory, RB_RAT_PAGE, MADV_WIPEONFORK); /* refused by old kernels: the fork handler wipes as well */
#endif
    agent->hot = (void *)memory;
    agent->cache = (void *)(memory + 2 * RB_RAT_PAGE);
    agent->c_cache = (void *)(memory + 2 * RB_RAT_PAGE + RB_RAT_CACHE * sizeof *agent->cache);
    *(struct rb_rat_agent **)(void *)(memory + RB_RAT_PAGE) = agent;
    agent->lane = lane;
    agent->main = lane == RAT_LANE_MAIN;
    agent->odd = odd;
    agent->names = names;
    bool added = agent_add(agent); /* else several Ractors came for the last place: it is left where it is */
    RB_GC_GUARD(odd);
    RB_GC_GUARD(keeper);
    return added ? agent : NULL;
}

struct rb_rat_agent *rb_rat_agent_take(void)
{
    struct rb_rat_agent *agent = NULL;
    pthread_mutex_lock(&agents_lock);
    for (int i = 1; i < agent_count && agent == NULL; i++)
        if (!taken[i]) {
            agent = agents[i];
            taken[i] = true;
        }
    bool full = agent_count == AGENTS_MAX;
    pthread_mutex_unlock(&agents_lock);
    return agent != NULL || full ? agent : agent_new(RAT_LANE_RACTOR);
}

void rb_rat_agent_give_back(struct rb_rat_agent *agent)
{
    for (int i = 1; i < agent_count; i++)
        if (agents[i] == agent)
            taken[i] = false;
}

int rb_rat_agent_others(void)
{
    int others = 0;
    for (int i = 1; i < agent_count; i++)
        others += taken[i];
    return others;
}

/* A Ractor is collected: nothing of it runs any more, its hooks are gone. */
static void ractor_ended(void *data)
{
    if (data != NULL && data != rb_rat_main_agent)
        rb_rat_agent_give_back(data);
}

struct rb_rat_agent *rb_rat_agent_current(void)
{
    return rb_ractor_local_storage_ptr(current_key);
}

void rb_rat_agent_set_current(struct rb_rat_agent *agent)
{
    rb_ractor_local_storage_ptr_set(current_key, agent);
}

/* ---------------------------------------------------------------- fork */

static uint32_t forks; /* from the first process to this one */

uint64_t rb_rat_process(void)
{
    return (uint64_t)forks << 32 | (uint32_t)getpid();
}

/* What MADV_WIPEONFORK does, where it does. Nothing else: the first event in the child does the rest. */
static void in_child(void)
{
    forks++;
    for (int i = 0; i < agent_count; i++) {
        memset(agents[i]->hot, 0, sizeof *agents[i]->hot);
        taken[i] = agents[i]->main; /* Ractors stay behind */
    }
    pthread_mutex_init(&agents_lock, NULL);
}

void rb_rat_agent_init(void)
{
    static const struct rb_ractor_local_storage_type type = {NULL, ractor_ended};
    current_key = rb_ractor_local_storage_ptr_newkey(&type);
    rb_rat_main_agent = agent_new(RAT_LANE_MAIN);
    if (rb_rat_main_agent == NULL)
        rb_raise(rb_eNoMemError, "ratrace: no memory for the recorder");
    rb_rat_agent_set_current(rb_rat_main_agent);
    rb_gc_register_mark_object(TypedData_Wrap_Struct(rb_cObject, &sweeper_type, (void *)1));
    pthread_atfork(NULL, NULL, in_child);
}
