/* Counting what the servers of a Redlock have answered: the rules, on invented answers. */
#include "backends/redis/quorum.h"
#include "unit.h"
#include "util.h"

#define THIS_YEAR UINT64_C(1790000000000000) /* of the fence counters, us */
#define TEN_YEARS (UINT64_C(3660) * 86400 * 1000000)
#define FAR (THIS_YEAR + TEN_YEARS + 1)

TEST(two_majorities_have_a_server_in_common)
{
    static const int want[] = {0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8};
    for (int n = 1; n < (int)DLOCK_LEN(want); n++) {
        CHECK_INT(quorum_of(n), want[n]);
        CHECK(2 * quorum_of(n) > n);
        CHECK(2 * (quorum_of(n) - 1) <= n);
    }
}

TEST(the_largest_value_that_so_many_servers_reach)
{
    static const int64_t values[] = {10, 30, 20, 0, 30}, want[] = {30, 30, 20, 10, 0, 0};
    for (int count = 1; count <= (int)DLOCK_LEN(want); count++)
        CHECK_INT(quorum_reached(values, DLOCK_LEN(values), count), want[count - 1]);
    CHECK_INT(quorum_reached(values, 0, 1), 0);
}

/* ------------------------------------------------------------------------- votes */

/* One letter a server. */
static const char letters[] = "ypbgG-rfl.";
static const enum redlock_answer answers[] = {A_YES,    A_PENDING, A_BUSY,    A_GRACE, A_GONE,
                                              A_FAILED, A_REFUSED, A_FOREIGN, A_LATE,  A_NONE};

static struct quorum_tally count(const char *round, const uint64_t *fences)
{
    struct quorum_vote v[REDLOCK_NODES];
    int n = (int)strlen(round);
    for (int i = 0; i < n; i++) {
        v[i].answer = answers[strchr(letters, round[i]) - letters];
        v[i].fence = fences ? fences[i] : THIS_YEAR;
    }
    return quorum_tally(v, n);
}

static int count_letter(const char *round, char letter)
{
    int found = 0;
    for (; *round; round++)
        found += *round == letter;
    return found;
}

/* All answers of up to four servers: none is lost, none counts twice. */
TEST(each_answer_counts_once)
{
    size_t kinds = strlen(letters), rounds = 1;
    for (int n = 1; n <= 4; n++) {
        rounds *= kinds;
        for (size_t k = 0; k < rounds; k++) {
            char round[5] = "";
            size_t rest = k;
            for (int i = 0; i < n; i++, rest /= kinds)
                round[i] = letters[rest % kinds];
            struct quorum_tally t = count(round, NULL);
            int yes = count_letter(round, 'y');
            bool ok = CHECK_INT(t.voted, yes) && CHECK_INT(t.votes, yes) &&
                      CHECK_INT(t.denied, count_letter(round, 'b') + count_letter(round, 'g')) &&
                      CHECK_INT(t.pending, count_letter(round, 'p')) &&
                      CHECK_INT(t.token, yes > 0 ? THIS_YEAR : 0) &&
                      CHECK_INT(quorum_round(&t, false) == ROUND_WON, 2 * yes > n);
            if (!ok)
                printf("# %s\n", round);
        }
    }
}

TEST(a_round_is_won_or_lost_as_soon_as_the_missing_answers_decide_nothing)
{
    static const struct {
        const char *round;
        enum quorum_round now, late;
    } t[] = {
        {"y", ROUND_WON, ROUND_WON},
        {"p", ROUND_OPEN, ROUND_OPEN},
        {"yp", ROUND_OPEN, ROUND_OPEN},
        {"y-", ROUND_LOST, ROUND_LOST},
        {"yy", ROUND_WON, ROUND_WON},
        {"yyp", ROUND_WON, ROUND_WON},
        {"ypp", ROUND_OPEN, ROUND_OPEN},
        {"ybp", ROUND_OPEN, ROUND_OPEN},
        {"ygp", ROUND_OPEN, ROUND_OPEN},
        {"ybg", ROUND_LOST, ROUND_LOST},
        {"bbp", ROUND_LOST, ROUND_LOST},
        {"bgp", ROUND_LOST, ROUND_LOST},
        /* The other servers' errors are waited for, for the message. */
        {"b-p", ROUND_OPEN, ROUND_LOST},
        {"--p", ROUND_OPEN, ROUND_LOST},
        {"-rp", ROUND_OPEN, ROUND_LOST},
        {"flp", ROUND_OPEN, ROUND_LOST},
        {"-rb", ROUND_LOST, ROUND_LOST},
        /* Half of the servers is no majority. */
        {"yypp", ROUND_OPEN, ROUND_OPEN},
        {"yybp", ROUND_OPEN, ROUND_OPEN},
        {"yybb", ROUND_LOST, ROUND_LOST},
        {"yyyp", ROUND_WON, ROUND_WON},
        {"yypp-", ROUND_OPEN, ROUND_OPEN},
        {"yybbp", ROUND_OPEN, ROUND_OPEN},
        {"yybbb", ROUND_LOST, ROUND_LOST},
        {"ybbbp", ROUND_LOST, ROUND_LOST},
        {"yyy--", ROUND_WON, ROUND_WON},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct quorum_tally c = count(t[i].round, NULL);
        if (!CHECK_INT(quorum_round(&c, false), t[i].now) ||
            !CHECK_INT(quorum_round(&c, true), t[i].late))
            printf("# %s\n", t[i].round);
    }
}

/* Of the voters' counters one may have been written by another program. */
TEST(a_counter_far_ahead_has_no_vote_once_a_majority_has_voted)
{
    static const uint64_t now = THIS_YEAR, lost = 0, later = THIS_YEAR + TEN_YEARS, far = FAR;
    static const struct {
        const char *round;
        uint64_t fences[5];
        int votes;
        uint64_t token;
        int ahead; /* this server; -1: none */
    } t[] = {
        {"yyy", {now, now + 2, now + 1}, 3, now + 2, -1},
        {"yyy", {now, later, now}, 3, later, -1},
        {"yyy", {now, far, now}, 2, now, 1},
        {"yyp", {now, far}, 1, now, 1},
        {"ypy", {far, 0, now}, 1, now, 0},
        {"yyy", {far, now, far}, 3, far, -1},
        {"yyy", {lost, now, now}, 3, now, -1},
        {"yyp", {lost, now}, 1, lost, 1},
        {"y", {far}, 1, far, -1},
        /* Without a majority of votes the median says nothing yet, but where the round is lost. */
        {"yyppp", {now, far}, 2, far, 1},
        {"yyy--", {now, now, far}, 2, now, 2},
        /* The counter of a server that has not voted is an old one. */
        {"byy", {far, now, now + 1}, 2, now + 1, -1},
        {"gyy", {lost, now, now}, 2, now, -1},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct quorum_tally c = count(t[i].round, t[i].fences);
        bool ok = CHECK_INT(c.voted, count_letter(t[i].round, 'y')) &&
                  CHECK_INT(c.votes, t[i].votes) && CHECK_INT(c.token, t[i].token);
        for (int k = 0; k < c.voted; k++)
            ok = CHECK_INT(c.ahead[k], k == t[i].ahead) && ok;
        if (!ok)
            printf("# %zu: %s\n", i, t[i].round);
    }
}

/* ------------------------------------------------------------------------- a read */

TEST(a_hold_is_merged_from_the_servers_that_name_it)
{
    static const struct {
        int n, quorum;
        struct quorum_hold of[5], want;
    } t[] = {
        {3, 2, {{30, 8, false}, {10, 7, false}, {20, 9, false}}, {20, 7, false}},
        {3, 3, {{30, 8, true}, {10, 7, true}, {20, 9, false}}, {10, 7, false}},
        {3, 3, {{30, 8, true}, {10, 7, true}, {20, 9, true}}, {10, 7, true}},
        {3, 2, {{30, 8, false}, {10, 7, true}, {20, 9, true}}, {20, 7, true}},
        {2, 2, {{30, 8, true}, {10, 9, false}}, {10, 8, false}},
        {4, 3, {{40, 5, true}, {30, 5, true}, {20, 5, false}, {10, 5, false}}, {20, 5, false}},
        {1, 1, {{30, 8, true}}, {30, 8, true}},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct quorum_hold h = quorum_hold(t[i].of, t[i].n, t[i].quorum);
        bool ok = CHECK_INT(h.left_ns, t[i].want.left_ns) && CHECK_INT(h.fence, t[i].want.fence) &&
                  CHECK_INT(h.marked, t[i].want.marked);
        if (!ok)
            printf("# %zu\n", i);
    }
}

TEST(the_newest_run_that_was_granted_the_lock_counts)
{
    /* Of each server: ended or running, fence, token; the last one is expected. */
    static const char *const t[] = {
        "E5a E7b E6c  E7b",
        "E5a E5a E5a  E5a",
        /* A minority may have recorded a run that was never granted the lock. */
        "E7a R9b      E7a",
        "R9b R8c E7a  E7a",
        "R9b E7a R9b  R9b",
        "R6b E7a R6b  E7a",
        /* A single server has the end. */
        "R9b R9b E9b  E9b",
        "R9b          R9b",
        "R8b R9c      R9c",
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct dlock_run runs[4] = {{0}};
        char state, token;
        int n = 0, used, fence;
        for (const char *s = t[i]; sscanf(s, " %c%d%c%n", &state, &fence, &token, &used) == 3;
             s += used, n++) {
            runs[n].state = state == 'R' ? DLOCK_RUN_RUNNING : DLOCK_RUN_FAILED;
            runs[n].fence = (uint64_t)fence;
            runs[n].token[0] = token;
        }
        const struct dlock_run *want = &runs[n - 1], *last = quorum_run(runs, n - 1, 2);
        if (!last || !CHECK_INT(last->state, want->state) || !CHECK_INT(last->fence, want->fence) ||
            !CHECK_STR(last->token, want->token))
            CHECK_FAIL("%s", t[i]);
    }
    CHECK_NULL(quorum_run(NULL, 0, 2));
}

UNIT_MAIN
