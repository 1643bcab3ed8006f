/* Tests of lib/ask.c: the policy of status, break and forget, on a store of a few lines. */
#include "ask.h"
#include "unit.h"
#include "util.h"

#define UNTIL (77 * DLOCK_SEC)

/* The store: what is in it, and another client, which acts between a read and the next step. */
static struct {
    struct dlock_info at[6]; /* holders, then waiters */
    int n, next;
    struct dlock_run run;
    bool has_run;
    struct dlock_error record; /* instead of a record, or why the lock is free */
    void (*meanwhile)(void);
    const char *ends_mark;
    enum dlock_ev refuses; /* the steps that change something end so */
    char steps[200];       /* "read mark ..." */
    int rests;
    struct dlock_event answer;
} store;

static const char *const names[] = {
    [STEP_READ] = "read ", [STEP_MARK] = "mark ", [STEP_FREE] = "free ", [STEP_FORGET] = "forget "};

static bool change(const struct dlock_order *o)
{
    if (o->what == STEP_FORGET) {
        bool same = store.has_run && strcmp(store.run.token, o->run->token) == 0;
        store.has_run = store.has_run && !same;
        return same;
    }
    for (int i = 0; i < store.n; i++) {
        struct dlock_info *h = &store.at[i];
        if (strcmp(h->token, o->holder->token) != 0 || h->fence != o->holder->fence ||
            (o->what == STEP_MARK && h->over))
            continue;
        h->broken = o->what == STEP_MARK;
        if (o->what == STEP_FREE)
            *h = store.at[--store.n];
        return true;
    }
    return false;
}

static void do_step(struct dlock_be *be, const struct dlock_order *o)
{
    (void)be;
    size_t len = strlen(store.steps);
    snprintf(store.steps + len, sizeof(store.steps) - len, "%s", names[o->what]);
    CHECK_INT(o->until, UNTIL);
    if (o->what == STEP_READ) {
        store.next = 0;
        store.answer = (struct dlock_event){
            .type = EV_READ, .run = store.has_run ? &store.run : NULL, .error = store.record};
        return;
    }
    if (store.meanwhile)
        store.meanwhile();
    store.answer = (struct dlock_event){.type = store.refuses ? store.refuses : EV_STEPPED};
    store.answer.stepped = !store.refuses && change(o);
    if (store.ends_mark)
        dlock_fail(&store.answer.error, 0, 0, "%s", store.ends_mark);
}

static bool next(struct dlock_be *be, struct dlock_info *info)
{
    (void)be;
    if (store.next == store.n)
        return false;
    *info = store.at[store.next++];
    return true;
}

static void rest(struct dlock_be *be)
{
    (void)be;
    store.rests++;
}

static int process(struct dlock_be *be, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    (void)be;
    (void)pfd;
    (void)n;
    *ev = store.answer;
    store.answer.type = EV_NONE;
    return ev->type != EV_NONE;
}

static const struct dlock_backend steps_table = {
    .step = do_step, .next = next, .rest = rest, .process = process};
static const struct dlock_backend *backend;
static struct ask ask;
static struct dlock_event ev;
static char told[200]; /* the events: "+pid": a holder or waiter; "run", "crashed", "notice" */
static int backs;

static void empty(void)
{
    memset(&store, 0, sizeof(store));
    backend = &steps_table;
}

static struct dlock_info *add(const char *token)
{
    struct dlock_info *h = &store.at[store.n++];
    *h = (struct dlock_info){.pid = store.n};
    snprintf(h->token, sizeof(h->token), "%s", token);
    return h;
}

static void record(const char *token, enum dlock_run_state state)
{
    store.has_run = true;
    store.run = (struct dlock_run){.state = state};
    snprintf(store.run.token, sizeof(store.run.token), "%s", token);
}

/* Ask to the end; returns the last event's type. */
static enum dlock_ev asked(const struct dlock_question *q)
{
    static struct dlock_uri uri = {.where = "store", .name = "n"};
    store.steps[0] = told[0] = '\0';
    store.rests = backs = 0;
    ask_start(&ask, backend, NULL, &uri, q, UNTIL);
    while (ask_process(&ask, NULL, 0, &ev) && ev.type != EV_DONE && ev.type != EV_BUSY &&
           ev.type != EV_FAILED) {
        size_t len = strlen(told);
        backs += ev.type == EV_BACK;
        if (ev.type == EV_INFO)
            snprintf(told + len, sizeof(told) - len, "%+ld ", ev.info->pid);
        else if (ev.type == EV_RUN)
            snprintf(told + len, sizeof(told) - len, ev.crashed ? "crashed " : "run ");
        else if (ev.type == EV_NOTICE)
            snprintf(told + len, sizeof(told) - len, "notice ");
    }
    CHECK_INT(ask.stage, ASKING_OFF);
    return ev.type;
}

static enum dlock_ev broken(const char *token, bool force)
{
    struct dlock_info holder = {0};
    snprintf(holder.token, sizeof(holder.token), "%s", token);
    return asked(&(struct dlock_question){.what = ASK_BREAK, .holder = &holder, .force = force});
}

static enum dlock_ev forgotten(const char *token)
{
    return asked(&(struct dlock_question){.what = ASK_FORGET, .token = token});
}

static enum dlock_ev status(void)
{
    return asked(&(struct dlock_question){.what = ASK_STATUS});
}

/* --- break --- */

TEST(a_hold_is_marked)
{
    empty();
    add("a");
    store.ends_mark = "the mark ends at noon";
    CHECK_INT(broken("a", false), EV_DONE);
    CHECK(ev.broken && store.at[0].broken);
    CHECK_STR(ev.error.msg, "the mark ends at noon");
    CHECK_STR(store.steps, "read mark ");
    CHECK_INT(store.rests, 1);
    CHECK_INT(backs, 1);                    /* an outage ends with the first answer */
    CHECK_INT(broken("a", false), EV_DONE); /* it is for the store to find its mark there */
    CHECK_STR(store.steps, "read mark ");
}

TEST(a_hold_that_is_over_is_freed_and_any_other_by_force)
{
    empty();
    add("a")->over = true;
    add("b")->foreign = true;
    CHECK_INT(broken("a", false), EV_DONE);
    CHECK(!ev.broken);
    CHECK_STR(store.steps, "read free ");
    CHECK_INT(broken("b", true), EV_DONE);
    CHECK(!ev.broken);
    CHECK_STR(store.steps, "read free ");
    CHECK_INT(store.n, 0);
    CHECK_INT(broken("b", true), EV_DONE); /* it is over by now */
    CHECK_STR(store.steps, "read ");
}

TEST(a_hold_that_no_mark_reaches_is_for_the_store_to_refuse)
{
    empty();
    add("a")->foreign = true;
    store.refuses = EV_FAILED;
    CHECK_INT(broken("a", false), EV_FAILED);
    CHECK_STR(store.steps, "read mark ");
    empty();
    const struct dlock_backend none = {.no_break = "ask the kernel", .process = process};
    backend = &none;
    CHECK_INT(broken("a", false), EV_FAILED);
    CHECK_INT(ev.error.code, DLOCK_EUNUSABLE);
    CHECK_STR(ev.error.msg, "store: ask the kernel");
    CHECK_STR(store.steps, "");
}

static void changes_hands(void)
{
    strcpy(store.at[0].token, "b");
}
static void comes_to_its_end(void)
{
    store.at[0].over = true;
    store.meanwhile = NULL;
}
static void is_released(void)
{
    store.n = 0;
}

TEST(a_change_meanwhile_is_read_again)
{
    empty();
    add("a");
    store.meanwhile = changes_hands;
    CHECK_INT(broken("a", false), EV_BUSY);
    CHECK_STR(ev.info->token, "b");
    CHECK(!store.at[0].broken);
    CHECK_STR(store.steps, "read mark read ");
    CHECK_INT(backs, 2);
    empty();
    add("a");
    store.meanwhile = comes_to_its_end;
    CHECK_INT(broken("a", false), EV_DONE);
    CHECK_STR(store.steps, "read mark read free ");
    CHECK_INT(store.n, 0);
    empty();
    add("a");
    store.meanwhile = is_released;
    CHECK_INT(broken("a", true), EV_DONE);
    CHECK(!ev.broken);
    CHECK_STR(store.steps, "read free read ");
}

TEST(of_several_holders_the_one_that_was_shown_is_meant)
{
    empty();
    add("a");
    add("b");
    add("w")->waiter = true;
    CHECK_INT(broken("b", false), EV_DONE);
    CHECK(store.at[1].broken && !store.at[0].broken);
    CHECK_INT(broken("w", false), EV_BUSY); /* waiters hold nothing */
    CHECK_STR(ev.info->token, "a");
    empty();
    add("w")->waiter = true;
    CHECK_INT(broken("w", false), EV_DONE);
}

TEST(a_hold_without_a_token_is_known_by_its_fence)
{
    struct dlock_info shown = {.fence = 5};
    const struct dlock_question q = {.what = ASK_BREAK, .holder = &shown, .force = true};
    empty();
    add("")->fence = 6;
    store.at[0].pid = 0;
    CHECK_INT(asked(&q), EV_BUSY);
    store.at[0].fence = 5;
    CHECK_INT(asked(&q), EV_DONE);
    CHECK_INT(store.n, 0);
}

static void is_in_vain(void)
{
    store.at[0].fence++;
}

TEST(a_lock_that_changes_all_the_time_is_given_up)
{
    empty();
    add("a");
    store.meanwhile = is_in_vain;
    CHECK_INT(broken("a", false), EV_FAILED);
    CHECK_INT(ev.error.code, DLOCK_EUNAVAIL);
    CHECK_INT(strlen(store.steps), 16 * strlen("read mark "));
    CHECK_INT(store.rests, 1);
}

/* --- forget --- */

TEST(a_record_is_forgotten_once)
{
    empty();
    CHECK_INT(forgotten("a"), EV_DONE);
    CHECK_STR(store.steps, "read ");
    record("a", DLOCK_RUN_FAILED);
    add("b"); /* the next run has not begun yet */
    CHECK_INT(forgotten("a"), EV_DONE);
    CHECK(!ev.broken && !store.has_run);
    CHECK_STR(store.steps, "read forget ");
    CHECK_INT(store.rests, 1);
}

TEST(a_record_of_another_run_stays)
{
    empty();
    record("b", DLOCK_RUN_SUCCEEDED);
    CHECK_INT(forgotten("a"), EV_FAILED);
    CHECK_INT(ev.error.code, DLOCK_EBUSY);
    CHECK_STR(ev.error.msg,
              "store: the record has changed: it is that of another run now (lock 'n')");
    CHECK_STR(store.steps, "read ");
    CHECK_INT(store.rests, 1);
}

static void runs_again(void)
{
    record("b", DLOCK_RUN_RUNNING);
}
static void is_forgotten(void)
{
    store.has_run = false;
}

TEST(a_record_that_changes_meanwhile_is_read_again)
{
    empty();
    record("a", DLOCK_RUN_FAILED);
    store.meanwhile = runs_again;
    CHECK_INT(forgotten("a"), EV_FAILED);
    CHECK_INT(ev.error.code, DLOCK_EBUSY);
    CHECK(store.has_run);
    record("a", DLOCK_RUN_FAILED);
    store.meanwhile = is_forgotten;
    CHECK_INT(forgotten("a"), EV_DONE);
    CHECK_STR(store.steps, "read forget read ");
}

TEST(foreign_data_in_the_records_place_stays)
{
    empty();
    dlock_fail(&store.record, DLOCK_EDATA, 0, "foreign");
    CHECK_INT(forgotten("a"), EV_FAILED);
    CHECK_INT(ev.error.code, DLOCK_EDATA);
    CHECK_STR(store.steps, "read ");
    CHECK_INT(store.rests, 1);
    record("a", DLOCK_RUN_FAILED); /* on other servers */
    CHECK_INT(forgotten("a"), EV_DONE);
}

/* Holders, and whether they may be the run "a" of a record that says "running". */
TEST(a_run_goes_on_while_a_holder_may_be_that_run)
{
    static const struct {
        struct dlock_info holder;
        bool goes_on;
    } cases[] = {
        {{.token = "a"}, true},
        {{.token = "a", .broken = true}, true},
        {{.token = "b"}, false},
        {{.token = "b", .foreign = true}, true}, /* another program may run the command */
        {{.token = ""}, true},                   /* unknown */
        {{.token = "a", .over = true}, false},
        {{.token = "a", .waiter = true}, false},
    };
    for (size_t i = 0; i < DLOCK_LEN(cases); i++) {
        empty();
        record("a", DLOCK_RUN_RUNNING);
        store.at[store.n++] = cases[i].holder;
        CHECK_INT(status(), EV_DONE);
        CHECK_STR(told, cases[i].goes_on ? "+0 run " : "+0 crashed ");
        CHECK_INT(forgotten("a"), cases[i].goes_on ? EV_BUSY : EV_DONE);
        CHECK_STR(store.steps, cases[i].goes_on ? "read " : "read forget ");
        CHECK(!ev.info);
    }
    empty();
    record("a", DLOCK_RUN_RUNNING);
    store.refuses = EV_BUSY; /* a holder that the store does not show */
    CHECK_INT(forgotten("a"), EV_BUSY);
}

TEST(a_run_that_has_ended_has_not_crashed_and_does_not_go_on)
{
    for (int state = DLOCK_RUN_FAILED; state <= DLOCK_RUN_SUCCEEDED; state++) {
        empty();
        record("a", (enum dlock_run_state)state);
        CHECK_INT(status(), EV_DONE);
        CHECK_STR(told, "run ");
        add("")->foreign = true;
        CHECK_INT(forgotten("a"), EV_DONE);
        CHECK(!store.has_run);
    }
}

/* --- status --- */

TEST(a_status_tells_holders_waiters_and_the_record)
{
    empty();
    dlock_fail(&store.record, 0, 0, "no such file");
    CHECK_INT(status(), EV_DONE);
    CHECK_STR(told, "");
    CHECK_STR(ev.error.msg, "no such file");
    add("a");
    add("b");
    add("w")->waiter = true;
    record("a", DLOCK_RUN_SUCCEEDED);
    CHECK_INT(status(), EV_DONE);
    CHECK_STR(told, "+1 +2 +3 run ");
    CHECK_STR(store.steps, "read ");
    CHECK_INT(store.rests, 1);
    CHECK_INT(backs, 0);
}

TEST(data_in_the_records_place_hides_no_holder)
{
    empty();
    add("a");
    dlock_fail(&store.record, DLOCK_EDATA, 0, "foreign");
    CHECK_INT(status(), EV_DONE);
    CHECK_STR(told, "+1 notice ");
    CHECK_STR(ev.error.msg, "");
}

TEST(a_failure_of_the_store_ends_the_question)
{
    empty();
    add("a");
    store.refuses = EV_FAILED;
    CHECK_INT(broken("a", true), EV_FAILED);
    CHECK_STR(store.steps, "read free ");
}

UNIT_MAIN
