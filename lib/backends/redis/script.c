/*
 * script.c - the Lua scripts of a lock in Redis: how they are called, what they answer, and the connection on which a
 * waiter is called. See script.h for keys and messages.
 *
 * Every script is one EVAL and so atomic. EVAL, not EVALSHA: for a few calls nothing is gained, and
 * NOSCRIPT after a restart would have to be handled. A database other than 0 is selected inside the
 * script: a SELECT that failed before it could not keep the EVAL from running in database 0, and this
 * way nothing else is on the wire [redis 7.0.15: SELECT in a script holds for the script only]. Only
 * NAME is in KEYS: Redis 7.0 tracks all of an EVAL's KEYS for CLIENT TRACKING, and the head of the line
 * wants to hear of NAME alone. The others share its slot. TIME before a write needs effect replication,
 * the default since Redis 5.
 *
 * Writes are ordered so that NAME is set last: a script that fails half-way (a missing right) has not
 * granted anything.
 *
 * A server's work does not grow with the number of waiters: only the first two in line are looked at.
 * Dead entries are dropped when they come to the front, each at most once.
 *
 * A waiter that was called and did not come (it is stopped, or its machine is cut off) is set aside: its
 * ticket is raised by SHELF, so that it stands behind all the others until its own next try gives it a
 * new ticket. So when the first in line is one of those, all are, and nobody has to wait for them: without
 * that, a stopped waiter alone in line would be called again and again, and keep the lock from newcomers.
 */
#include "script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALIDATE "__redis__:invalidate"
#define SHELF "4e15"     /* added to the ticket of who did not come */
#define MAX_VALUE "1200" /* of a value, as far as it is handed out: a foreign one may be huge */

/* clang-format off */
#define LUA_BEGIN                                                                                  \
    "local name,p=KEYS[1],ARGV[2]\n"                                                               \
    "if ARGV[1]~='0' then redis.call('SELECT',ARGV[1]) end\n"

/* v: NAME's value, false if none; ty: the type's name if it is no string. pcall, so that we can tell. */
#define LUA_GET                                                                                    \
    "local v,ty=redis.pcall('GET',name)\n"                                                         \
    "if type(v)=='table' then\n"                                                                   \
    "  ty=redis.call('TYPE',name).ok\n"                                                            \
    "  if ty=='string' or ty=='none' then return v end\n"                                          \
    "end\n"                                                                                        \
    "local seen=ty or (v and string.sub(v,1," MAX_VALUE "))\n"

/*
 * A cluster moves a slot key by key. While NAME is still here, a call that touches one of the other keys fails if
 * that key has gone already, or never was [redis 7.0.15]. True: f was done; false and the error: for that reason it
 * was not. Everything else is raised.
 */
#define LUA_NEAR                                                                                   \
    "local function near(f)\n"                                                                     \
    "  local ok,e=pcall(f)\n"                                                                      \
    "  if ok then return true end\n"                                                               \
    "  e=type(e)=='table' and e.err or e\n"                                                        \
    "  if not string.find(e,'non local key',1,true) then error(e,0) end\n"                         \
    "  return false,e\n"                                                                           \
    "end\n"

#define LUA_QUEUE                                                                                  \
    "local q,h=p..'queue',p..'waiters'\n"                                                          \
    "local t=redis.call('TIME')\n"                                                                 \
    "local now=t[1]*1000+math.floor(t[2]/1000)\n"                                                  \
    "local function at(i) return redis.call('ZRANGE',q,i,i)[1] end\n"                              \
    "local function drop(w) redis.call('ZREM',q,w) redis.call('HDEL',h,w) end\n"                   \
    "local function tell(w,m) return redis.call('PUBLISH',p..'wake:'..w,m)>0 end\n"                \
    "local function rec(w)\n"                                                                      \
    "  local a,c,who=string.match(redis.call('HGET',h,w) or '','^(%d+) (%d+) (.*)$')\n"            \
    "  return tonumber(a or 0),tonumber(c or 0),who or ''\n"                                       \
    "end\n"                                                                                        \
    "local function put(w,a,c,who)\n"                                                              \
    "  redis.call('HSET',h,w,string.format('%.0f %.0f ',a,c)..who)\n"                              \
    "end\n"                                                                                        \
    /* A ticket is the time in us, so that it needs no look at the others' (who may be set aside); \
     * the last one's keeps the order when the clock goes back. Exact until 2096. */               \
    "local function tail(w,base)\n"                                                                \
    "  local s,l=base+t[1]*1000000+t[2],redis.call('ZRANGE',q,-1,-1,'WITHSCORES')[2]\n"            \
    "  l=tonumber(l or 0)\n"                                                                       \
    "  if (l>=" SHELF ")==(base>0) then s=math.max(s,l+1) end\n"                                   \
    "  redis.call('ZADD',q,string.format('%.0f',s),w)\n"                                           \
    "end\n"                                                                                        \
    /* It is in line, and not set aside. */                                                        \
    "local function in_line(w)\n"                                                                  \
    "  local s=redis.call('ZSCORE',q,w)\n"                                                         \
    "  return s and tonumber(s)<" SHELF "\n"                                                       \
    "end\n"                                                                                        \
    /* The first in line that is alive by its own last word. */                                    \
    "local function head()\n"                                                                      \
    "  while true do\n"                                                                            \
    "    local w=at(0)\n"                                                                          \
    "    if not w or rec(w)>=now then return w end\n"                                              \
    "    drop(w)\n"                                                                                \
    "  end\n"                                                                                      \
    "end\n"                                                                                        \
    /* There is a new first one: it has to watch from now on. Nobody listens: it is dead. */       \
    "local function watch()\n"                                                                     \
    "  while true do\n"                                                                            \
    "    local w=head()\n"                                                                         \
    "    if not w or tell(w,'head') then return end\n"                                             \
    "    drop(w)\n"                                                                                \
    "  end\n"                                                                                      \
    "end\n"                                                                                        \
    /* NAME is free: call the first in line, unless that is me. One who was called before and has  \
     * not come is set aside. The second is told, so that it looks after the first one's time is up.\
     * Answers nil when nobody is left for whom NAME is to be kept. */                             \
    "local function offer(me,fresh)\n"                                                             \
    "  while true do\n"                                                                            \
    "    local w=head()\n"                                                                         \
    "    if not w or w==me then return w,0 end\n"                                                  \
    "    local a,c,who=rec(w)\n"                                                                   \
    "    if not tell(w,'go') then drop(w)\n"                                                       \
    "    elseif not in_line(w) then return\n"                                                      \
    "    elseif not fresh and c>0 and c<=now then tail(w," SHELF ") put(w,a,0,who)\n"              \
    "    elseif not fresh and c>0 then return w,c\n"                                               \
    "    else\n"                                                                                   \
    "      put(w,a,now+1000,who)\n"                                                                \
    "      while true do\n"                                                                        \
    "        local s=at(1)\n"                                                                      \
    "        if not s or tell(s,'next') then return w,now+1000 end\n"                              \
    "        drop(s)\n"                                                                            \
    "      end\n"                                                                                  \
    "    end\n"                                                                                    \
    "  end\n"                                                                                      \
    "end\n"

/*
 * v is set: busy; not up for long enough: grace. Then whoever is first in line, unless that is on another node
 * of a cluster.
 */
#define LUA_LOOK                                                                                   \
    "if ty then return {'type','0',0,0,ty} end\n"                                                 \
    LUA_NEAR                                                                                       \
    LUA_QUEUE                                                                                      \
    "local id,ttl,grace=ARGV[4],tonumber(ARGV[5]),tonumber(ARGV[6])\n"                            \
    "local status,left='busy',0\n"                                                                \
    /* Ours already: an earlier try of this token was served, its answer lost. */                  \
    "local grant=v==ARGV[3]\n"                                                                    \
    "if v then left=redis.call('PTTL',name)\n"                                                    \
    "elseif grace>0 then\n"                                                                       \
    "  local up=string.match(redis.call('INFO','server'),'uptime_in_seconds:(%d+)')*1000\n"       \
    /* The uptime may be up to a second too large: it is a difference of whole seconds. */         \
    "  if up<grace+1000 then status='grace' left=grace+1000-up end\n"                             \
    "end\n"                                                                                       \
    "local w\n"                                                                                   \
    "local all,e=near(function() w=head() end)\n"                                                 \
    "if not all then\n"                                                                           \
    "  if id=='' and v and not grant then return {'busy','0',left,0,seen} end\n"                  \
    "  return redis.error_reply(e)\n"                                                             \
    "end\n"                                                                                       \
    "local first=w\n"

#define LUA_GRANT                                                                                  \
    "if grant then\n"                                                                             \
    /* tostring(1.79e15) would lose digits. The clock keeps it growing if the counter is lost. */  \
    "  local f=math.max((tonumber(redis.call('GET',p..'fence')) or 0)+1,t[1]*1000000+t[2])\n"     \
    "  f=string.format('%.0f',f)\n"                                                               \
    "  redis.call('SET',p..'fence',f,'PX',string.format('%.0f',math.max(86400000,10*ttl)))\n"     \
    "  if id~='' then drop(id) end\n"                                                             \
    "  if w==id then watch() end\n"                                                               \
    "  redis.call('SET',name,ARGV[3],'PX',ARGV[5])\n"                                             \
    "  return {'granted',f,ttl,0,'',now}\n"                                                           \
    "end\n"

/*
 * Is this server up for less than g ms, so that it does not vote? What it has forgotten it has given to nobody.
 * No right to ask: no.
 */
#define LUA_YOUNG                                                                                  \
    "local function young(g)\n"                                                                   \
    "  if g==0 then return false end\n"                                                           \
    "  local ok,up=pcall(function()\n"                                                            \
    "    return string.match(redis.call('INFO','server'),'uptime_in_seconds:(%d+)')*1000\n"       \
    "  end)\n"                                                                                    \
    "  return ok and up<g+1000\n"                                                                 \
    "end\n"

/* Not granted: stand in line. */
#define LUA_STAND                                                                                  \
    "if id=='' then return {status,'0',left,redis.call('ZCARD',q)+1,seen or ''} end\n"            \
    "if not in_line(id) then tail(id,0) end\n"                                                    \
    "put(id,now+ttl,0,string.sub(ARGV[3],34))\n"                                                  \
    /* Is the first one still there? A new first one learns it from its place. */                  \
    "while w and w~=id and not tell(w,'ping') do drop(w) w=head() end\n"                          \
    "if w and w~=id and w~=first then tell(w,'head') end\n"                                       \
    /* Never shortened: others may have a longer ttl. (PEXPIRE GT is Redis 7.) */                  \
    "for _,k in ipairs({q,h}) do\n"                                                               \
    "  if redis.call('PTTL',k)<2*ttl then redis.call('PEXPIRE',k,2*ttl) end\n"                    \
    "end\n"                                                                                       \
    "return {status,'0',left,redis.call('ZRANK',q,id)+1,seen or ''}\n"

/*
 * ARGV: db, prefix, value, id ("": do not stand in line), ttl ms, restart grace ms -> status, fence,
 * left, place, seen, and where it is granted the server's clock. Not more arguments: Redis 7 cuts who sends
 * more than 10 words before AUTH, and "NOAUTH" is the better message.
 */
static const char lua_try[] =
    LUA_BEGIN
    LUA_GET
    LUA_LOOK
    "if not v and status=='busy' then\n"
    "  local c\n"
    "  w,c=offer(id,false)\n"
    "  if not w or w==id then grant=true else status='claim' left=c-now end\n"
    "end\n"
    LUA_GRANT
    LUA_STAND;

/*
 * The same as one vote of several servers. Nobody is kept waiting for who is first in line: each server
 * has its own line, and all of them would have to agree. Ours already: a server is asked once for a value,
 * so this one is asked under two names.
 */
static const char lua_vote[] =
    LUA_BEGIN
    LUA_GET
    "if v==ARGV[3] then return {'twice','0',0,0,''} end\n"
    LUA_LOOK
    "grant=not v and status=='busy'\n"
    LUA_GRANT
    LUA_STAND;

/* ARGV: db, prefix, value, id, restart grace ms -> was it ours (2: forgotten in a restart), seen, now */
static const char lua_leave[] =
    LUA_BEGIN
    LUA_GET
    LUA_NEAR
    LUA_YOUNG
    LUA_QUEUE
    "local id,mine=ARGV[4],v==ARGV[3]\n"
    "if mine then redis.call('DEL',name) end\n"
    /* Whoever is in line on another node looks again by itself. */
    "near(function()\n"
    "  local first,called=false,false\n"
    "  if id~='' then\n"
    "    local _,c=rec(id)\n"
    "    first,called=at(0)==id,c>0\n"
    "    drop(id)\n"
    "  end\n"
    "  if mine or (not v and (first or called)) then offer('',true)\n"
    "  elseif first then watch() end\n"
    "end)\n"
    "return {mine and 1 or (not seen and young(tonumber(ARGV[5])) and 2) or 0,seen,now}\n";

/*
 * ARGV: db, prefix, value -> was it ours, seen. For a cluster's node to which the slot is being moved: the queue
 * may still be on the other one, and those who wait have subscribed there, so they would look dead from here.
 */
static const char lua_drop[] =
    LUA_BEGIN
    LUA_GET
    "if v==ARGV[3] then redis.call('DEL',name) return {1,seen} end\n"
    "return {0,seen}\n";

/* ARGV: db, prefix, value, ttl ms -> is it ours, seen, now. Never creates the key. */
static const char lua_renew[] =
    LUA_BEGIN
    LUA_GET
    "local t=redis.call('TIME')\n"
    "local now=t[1]*1000+math.floor(t[2]/1000)\n"
    "if v==ARGV[3] then redis.call('PEXPIRE',name,ARGV[4]) return {1,false,now} end\n"
    "return {0,seen,now}\n";

/*
 * ARGV: db, prefix, value, ttl ms, fence ('0': leave it), heal ('1': set NAME if it is free), restart grace ms ->
 * is it ours (2: forgotten in a restart), seen, now. The counter first: a script that fails half-way must not leave NAME set.
 */
static const char lua_keep[] =
    LUA_BEGIN
    LUA_GET
    LUA_YOUNG
    "local t=redis.call('TIME')\n"
    "local now=t[1]*1000+math.floor(t[2]/1000)\n"
    "if v~=ARGV[3] and (seen or ARGV[6]~='1') then\n"
    "  return {not seen and young(tonumber(ARGV[7])) and 2 or 0,seen,now}\n"
    "end\n"
    "local f=ARGV[5]\n"
    "if f~='0' and tonumber(redis.call('GET',p..'fence') or 0)<tonumber(f) then\n"
    "  redis.call('SET',p..'fence',f,'PX',string.format('%.0f',math.max(86400000,10*ARGV[4])))\n"
    "end\n"
    "redis.call('SET',name,ARGV[3],'PX',ARGV[4])\n"
    "return {1,false,now}\n";

/* ARGV: db, prefix -> held, value, now, left, fence, entry... Reads only. */
static const char lua_status[] =
    LUA_BEGIN
    LUA_GET
    LUA_NEAR
    "local t=redis.call('TIME')\n"
    "local out={v and 1 or 0,seen or '',t[1]*1000+math.floor(t[2]/1000),redis.call('PTTL',name),'0'}\n"
    "near(function() out[5]=redis.call('GET',p..'fence') or '0' end)\n"
    "near(function()\n"
    "  for _,w in ipairs(redis.call('ZRANGE',p..'queue',0,999)) do\n"
    "    out[#out+1]=string.sub(redis.call('HGET',p..'waiters',w) or '',1," MAX_VALUE ")\n"
    "  end\n"
    "end)\n"
    "return out\n";
/* clang-format on */

/* ----------------------------------------------------------------- arguments */

/* Redis Cluster: the first '{' and the first '}' behind it, with something between [cluster spec]. */
static bool has_hash_tag(const char *name)
{
    const char *open = strchr(name, '{');
    const char *shut = open != NULL ? strchr(open, '}') : NULL;
    return shut != NULL && shut > open + 1;
}

int redis_script_init(struct redis_script *s, const char *name, int db)
{
    /* The second colon keeps the name "{x}" apart from the name "x". */
    bool tag = has_hash_tag(name);
    *s = (struct redis_script){.name = strdup(name)};
    if (s->name == NULL ||
        asprintf(&s->prefix, "%s%s%s:dlock:", tag ? "" : "{", name, tag ? ":" : "}") < 0) {
        s->prefix = NULL;
        redis_script_done(s);
        return DLOCK_ENOMEM;
    }
    s->torn = !tag && strchr(name, '}') != NULL;
    snprintf(s->db, sizeof(s->db), "%d", db);
    return 0;
}

void redis_script_done(struct redis_script *s)
{
    free(s->name);
    free(s->prefix);
    *s = (struct redis_script){0};
}

static int eval(const struct redis_script *s, struct redis_conn *c, int tag, const char *text,
                int n, const char *const *more)
{
    const char *argv[11] = {"EVAL", text, "1", s->name, s->db, s->prefix};
    size_t len[11];
    int argc = 6;
    while (argc - 6 < n) {
        argv[argc] = more[argc - 6];
        argc++;
    }
    for (int i = 0; i < argc; i++)
        len[i] = strlen(argv[i]);
    return redis_conn_send(c, tag, argc, argv, len);
}

static const char *msec(char buf[24], int64_t ns)
{
    /* Rounded up: the server's lease must not be shorter than what the core counts on. */
    snprintf(buf, 24, "%lld", (long long)((ns + DLOCK_MSEC - 1) / DLOCK_MSEC));
    return buf;
}

int redis_script_try(const struct redis_script *s, struct redis_conn *c, int tag, const char *value,
                     const char *id, int64_t ttl, int64_t grace)
{
    char t[24], g[24];
    const char *more[] = {value, id, msec(t, ttl), msec(g, grace)};
    return eval(s, c, tag, lua_try, 4, more);
}

int redis_script_leave(const struct redis_script *s, struct redis_conn *c, int tag,
                       const char *value, const char *id)
{
    return redis_script_unvote(s, c, tag, value, id, 0);
}

int redis_script_drop(const struct redis_script *s, struct redis_conn *c, int tag,
                      const char *value)
{
    return eval(s, c, tag, lua_drop, 1, &value);
}

int redis_script_renew(const struct redis_script *s, struct redis_conn *c, int tag,
                       const char *value, int64_t ttl)
{
    char t[24];
    const char *more[] = {value, msec(t, ttl)};
    return eval(s, c, tag, lua_renew, 2, more);
}

int redis_script_vote(const struct redis_script *s, struct redis_conn *c, int tag,
                      const char *value, const char *id, int64_t ttl, int64_t grace)
{
    char t[24], g[24];
    const char *more[] = {value, id, msec(t, ttl), msec(g, grace)};
    return eval(s, c, tag, lua_vote, 4, more);
}

int redis_script_keep(const struct redis_script *s, struct redis_conn *c, int tag,
                      const char *value, int64_t ttl, uint64_t fence, bool heal, int64_t grace)
{
    char t[24], f[24], g[24];
    const char *more[] = {value, msec(t, ttl), f, heal ? "1" : "0", msec(g, grace)};
    snprintf(f, sizeof(f), "%llu", (unsigned long long)fence);
    return eval(s, c, tag, lua_keep, 5, more);
}

int redis_script_unvote(const struct redis_script *s, struct redis_conn *c, int tag,
                        const char *value, const char *id, int64_t grace)
{
    char g[24];
    const char *more[] = {value, id, msec(g, grace)};
    return eval(s, c, tag, lua_leave, 3, more);
}

int redis_script_status(const struct redis_script *s, struct redis_conn *c, int tag)
{
    return eval(s, c, tag, lua_status, 0, NULL);
}

/* ------------------------------------------------------------------- answers */

/* Another program, or a server that is not one, may have written any of it: all of it is checked. */

static bool is_string(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS;
}

static uint64_t to_fence(const redisReply *r)
{
    char *end;
    errno = 0;
    unsigned long long f = strtoull(r->str, &end, 10);
    return errno != 0 || *end != '\0' || f > INT64_MAX ? 0 : f;
}

/* ms, or -1. Another program's lease may be one of centuries: now and some of these must have room in 64 bits of ns. */
static int64_t to_left(const redisReply *r)
{
    return dlock_max(-1, dlock_min(r->integer, INT64_MAX / 4 / DLOCK_MSEC));
}

/* The element that says what time it is there; 0: it does not. */
static int64_t clock_at(const redisReply *r, size_t i)
{
    if (i >= r->elements || r->element[i]->type != REDIS_REPLY_INTEGER)
        return 0;
    return dlock_max(0, r->element[i]->integer);
}

int redis_script_tried(const redisReply *r, struct redis_script_tried *t)
{
    static const char *const words[] = {"granted", "busy", "claim", "grace", "type", "twice"};
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 5 || r->elements > 6 ||
        !is_string(r->element[0]) || !is_string(r->element[1]) ||
        r->element[2]->type != REDIS_REPLY_INTEGER || r->element[3]->type != REDIS_REPLY_INTEGER ||
        !is_string(r->element[4]))
        return DLOCK_EPROTO;
    for (size_t i = 0; i < DLOCK_LEN(words); i++) {
        if (strcmp(words[i], r->element[0]->str) != 0)
            continue;
        *t = (struct redis_script_tried){
            .status = (enum redis_script_status)i,
            .fence = to_fence(r->element[1]),
            .left_ms = to_left(r->element[2]),
            .place = (int)dlock_max(0, dlock_min(r->element[3]->integer, INT32_MAX)),
            .holder = r->element[4]->str,
            .holder_len = (size_t)r->element[4]->len,
            .now_ms = clock_at(r, 5),
        };
        return t->status == RS_GRANTED && t->fence == 0 ? DLOCK_EPROTO : 0;
    }
    return DLOCK_EPROTO;
}

int redis_script_owned(const redisReply *r, bool *ours, const char **found, size_t *len)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 1 ||
        r->element[0]->type != REDIS_REPLY_INTEGER)
        return DLOCK_EPROTO;
    *ours = r->element[0]->integer == 1;
    *found = NULL;
    *len = 0;
    if (r->elements > 1 && is_string(r->element[1])) {
        *found = r->element[1]->str;
        *len = (size_t)r->element[1]->len;
    }
    return 0;
}

bool redis_script_forgotten(const redisReply *r)
{
    return r->elements > 0 && r->element[0]->type == REDIS_REPLY_INTEGER &&
           r->element[0]->integer == 2;
}

int64_t redis_script_owned_at(const redisReply *r)
{
    return r->type == REDIS_REPLY_ARRAY ? clock_at(r, 2) : 0;
}

int redis_script_state(const redisReply *r, struct redis_script_state *s)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 5 ||
        r->element[0]->type != REDIS_REPLY_INTEGER || !is_string(r->element[1]) ||
        r->element[2]->type != REDIS_REPLY_INTEGER || r->element[3]->type != REDIS_REPLY_INTEGER ||
        !is_string(r->element[4]))
        return DLOCK_EPROTO;
    *s = (struct redis_script_state){
        .held = r->element[0]->integer != 0,
        .value = r->element[1]->str,
        .len = (size_t)r->element[1]->len,
        .now_ms = r->element[2]->integer,
        .left_ms = to_left(r->element[3]),
        .fence = to_fence(r->element[4]),
        .waiters = r->element + 5,
        .nwaiters = r->elements - 5,
    };
    return 0;
}

/* -------------------------------------------------------------------- values */

char *redis_script_value(const char *token, const struct dlock_who *who)
{
    char record[1024], *p;
    if (dlock_who_format(who, record, sizeof(record)) < 0)
        snprintf(record, sizeof(record), "dlock1");
    return asprintf(&p, "%s %s", token, record) < 0 ? NULL : p;
}

void redis_script_holder(const char *value, size_t len, struct dlock_info *info)
{
    *info = (struct dlock_info){.left_ns = -1, .mode = DLOCK_EXCLUSIVE};
    if (len > DLOCK_TOKEN_LEN && value[DLOCK_TOKEN_LEN] == ' ' &&
        strspn(value, "0123456789abcdef") == DLOCK_TOKEN_LEN &&
        dlock_who_parse(value + DLOCK_TOKEN_LEN + 1, len - DLOCK_TOKEN_LEN - 1, info)) {
        memcpy(info->token, value, DLOCK_TOKEN_LEN);
        info->token[DLOCK_TOKEN_LEN] = '\0';
    } else {
        info->foreign = true;
    }
}

bool redis_script_waiter(const char *entry, size_t len, int64_t now_ms, struct dlock_info *info)
{
    char *p;
    *info = (struct dlock_info){.waiter = true, .left_ns = -1, .mode = DLOCK_EXCLUSIVE};
    long long alive = strtoll(entry, &p, 10);
    if (p == entry || *p != ' ' || alive < now_ms)
        return false;
    (void)strtoll(p, &p, 10);
    if (*p != ' ')
        return false;
    p++;
    return dlock_who_parse(p, len - (size_t)(p - entry), info);
}

/* ------------------------------------------------------------------- wake-up */

char *redis_script_channel(const struct redis_script *s, const char *id)
{
    char *p;
    return asprintf(&p, "%swake:%s", s->prefix, id) < 0 ? NULL : p;
}

void redis_script_subscribe(struct redis_conn *c, const char *channel, int id_tag, int wake_tag,
                            int changed_tag)
{
    const char *ask_id[] = {"CLIENT", "ID"};
    const char *wake[] = {"SUBSCRIBE", channel};
    const char *changed[] = {"SUBSCRIBE", INVALIDATE};

    (void)redis_conn_send(c, id_tag, 2, ask_id, (size_t[]){6, 2});
    (void)redis_conn_send(c, wake_tag, 2, wake, (size_t[]){9, strlen(channel)});
    (void)redis_conn_send(c, changed_tag, 2, changed, (size_t[]){9, strlen(INVALIDATE)});
}

bool redis_script_track(struct redis_conn *c, int tag, long long id)
{
    char text[24];
    const char *argv[] = {"CLIENT", "TRACKING", "ON", "REDIRECT", text, "NOLOOP"};
    size_t len[DLOCK_LEN(argv)];

    snprintf(text, sizeof(text), "%lld", id);
    for (size_t i = 0; i < DLOCK_LEN(argv); i++)
        len[i] = strlen(argv[i]);
    return redis_conn_send(c, tag, DLOCK_LEN(argv), argv, len) == 0;
}

static bool names_lock(const struct redis_script *s, const redisReply *keys)
{
    size_t len = strlen(s->name);
    if (keys->type != REDIS_REPLY_ARRAY)
        return true; /* NULL: everything was flushed */
    for (size_t i = 0; i < keys->elements; i++) {
        const redisReply *k = keys->element[i];
        if (k->type == REDIS_REPLY_STRING && (size_t)k->len == len &&
            memcmp(k->str, s->name, len) == 0)
            return true;
    }
    return false;
}

enum redis_script_call redis_script_called(const struct redis_script *s, const redisReply *message)
{
    const redisReply *from = message->element[1], *what = message->element[2];

    if (from->type == REDIS_REPLY_STRING && strcmp(from->str, INVALIDATE) == 0)
        return names_lock(s, what) ? RS_CHANGED : RS_NOTHING;
    if (what->type != REDIS_REPLY_STRING)
        return RS_NOTHING;
    return strcmp(what->str, "go") == 0     ? RS_GO
           : strcmp(what->str, "next") == 0 ? RS_NEXT
           : strcmp(what->str, "head") == 0 ? RS_HEAD
                                            : RS_NOTHING;
}
