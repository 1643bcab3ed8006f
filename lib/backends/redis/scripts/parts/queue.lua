-- queue.lua - the waiters of a lock, in the order of arrival. script.h has the formats of keys and
-- messages. w: the id of a waiter.
--
-- The server's work does not grow with the number of waiters: a release calls the first; a grant
-- tells the new first two. Dead entries are dropped when they come to the front.
--
-- Claims. A called waiter has a claim: until its end the waiter may take the free lock, and a try
-- that finds claims in front waits for their end. A waiter whose claim ends without a try (stopped,
-- or cut off) is set aside: SHELF is added to the ticket, and the waiter stands behind the others
-- until the next try gives a new ticket. So when the first in the queue is set aside, all are. A
-- try ends the claim of its waiter, whatever the result: the waiter is alive, and is called again.
--
-- Silent waiters in front, however many, delay the next live waiter by 3 s at most. A script cannot
-- know which waiters live, and tells only a few. So every waiter looks every 1.5 s, by PTTL,
-- whether the lock is free (the second every 0.5 s; LOOK_* in acquire.c), and tries if it is. The
-- key PREFIXclaim exists while claims run, and a waiter that sees the key looks again after its
-- expiry. So not all of them try. A grant leaves the key alone: the key matters only while the lock
-- is free, and the release deletes the key, or calls anew.
--   release: the first has a claim of 1 s, whose end the second knows when it has looked: 1.03 s
--     with a single silent waiter. Otherwise the next live waiter has looked at 1.5 s.
--   expiry, or a DEL by another program: no claim runs. The first waiter hears of it (tracking),
--     and gets 0.5 s, with the three behind it, if still absent when another waiter looks.
-- A try that finds claims over calls, for 0.3 s and all at once, eight times as many waiters as it
-- has set aside: 8 (or 32), 64, 512, ... It waits for these claims, and begins the next round at
-- most 0.1 s after their end. n silent waiters take log8(n) rounds: 20 of them 1.5 + 2 x 0.4 s, 500
-- of them 2.7 s. Called waiters that live keep their order: each waits for the claims in front.
local SHELF = 4e15
local CLAIM, LATE, SHORT = 1000, 500, 300 -- ms; CLAIM: REDIS_SCRIPT_CLAIM in script.h
local ROUND, GROWTH, MOST = 4, 8, 1000
local queue, waiters = prefix .. 'queue', prefix .. 'waiters'
-- include parts/holders.lua

-- The waiters' hash first: if a cluster has the hash on another node, nothing may have been
-- changed.
local function drop(w)
  redis.call('HDEL', waiters, w)
  redis.call('ZREM', queue, w)
end

-- Claims run for ms; nil: they have ended. pcall: a cluster's node does not touch a missing key
-- while its slot is being moved away. Then waiters that look try, too.
local function claimed(ms)
  if ms then redis.pcall('SET', prefix .. 'claim', '', 'PX', string.format('%.0f', ms))
  else redis.pcall('DEL', prefix .. 'claim') end
end

-- True: a client listens.
local function tell(w, message)
  return redis.call('PUBLISH', prefix .. 'wake:' .. w, message) > 0
end

-- The waiter counts as alive until alive, and may take the lock until claim (ms; 0: not called).
local function parse(entry)
  local alive, claim, who = string.match(entry or '', '^(%d+) (%d+) (.*)$')
  return tonumber(alive or 0), tonumber(claim or 0), who or ''
end

local function format(alive, claim, who) return string.format('%.0f %.0f ', alive, claim) .. who end

local function put(w, alive, claim, who)
  redis.call('HSET', waiters, w, format(alive, claim, who))
end

-- Put w behind the others of its kind (base 0: in the queue; SHELF: set aside). A ticket is the
-- time in us, independent of the others' tickets (which may be set aside); the last ticket keeps
-- the order when the clock goes back. Exact until 2096.
local function tail(w, base)
  local ticket = base + time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2] or 0)
  if (last >= SHELF) == (base > 0) then ticket = math.max(ticket, last + 1) end
  redis.call('ZADD', queue, string.format('%.0f', ticket), w)
  return ticket
end

-- The ticket of w; nil: not in the queue, or set aside.
local function in_line(w)
  local ticket = tonumber(redis.call('ZSCORE', queue, w) or SHELF)
  return ticket < SHELF and ticket or nil
end

-- w takes its lost place, known by ticket, again. A waiter that was set aside stays there, and a
-- ticket from the future is void: the clock was set back.
local function rejoin(w, ticket)
  if ticket > time[1] * 1000000 + time[2] or redis.call('ZSCORE', queue, w) then return end
  redis.call('ZADD', queue, string.format('%.0f', ticket), w)
end

-- The first waiter that is alive by its last word; me is. And the two behind it.
local function head(me)
  while true do
    local w, second, third = unpack(redis.call('ZRANGE', queue, '0', '2'))
    if not w or w == me or parse(redis.call('HGET', waiters, w)) >= now then
      return w, {second, third}
    end
    drop(w)
  end
end

-- Tell a new head to watch NAME from now on, and the waiter behind to look now and then. A head
-- that does not listen is dead. lease: '', or ' MS VALUE' of a lock that was granted just now. two:
-- the first two waiters, if known.
local function watch(lease, two)
  while true do
    two = two or redis.call('ZRANGE', queue, '0', '1')
    if not two[1] then return end
    if tell(two[1], 'head' .. lease) then
      if two[2] then tell(two[2], 'second') end
      return
    end
    drop(two[1])
    two = nil
  end
end

-- The waiters among the first n in line that come before me, up to the first waiter for whose kind
-- there is no room, the second result. Where there are none because all are set aside, the first is
-- told that there is room: perhaps back soon. all: the first n, if known.
local function before(me, n, all)
  local ids = {}
  all = all or redis.call('ZRANGE', queue, '0', n - 1, 'WITHSCORES')
  for i = 1, #all, 2 do
    if all[i] == me or tonumber(all[i + 1]) >= SHELF then break end
    if not room(kind_of(all[i])) then return ids, all[i] end
    ids[#ids + 1] = all[i]
  end
  if not ids[1] and all[1] and all[1] ~= me then tell(all[1], 'go') end
  return ids
end

-- Drop the waiters among ids that do not listen; true: all listen. PUBLISH also counts clients that
-- listen to all channels (PSUBSCRIBE *), so ask for subscribers where the user may.
local function listening(ids)
  local ask, all = {}, true
  for i, w in ipairs(ids) do ask[i] = prefix .. 'wake:' .. w end
  local said = redis.pcall('PUBSUB', 'NUMSUB', unpack(ask))
  for i, w in ipairs(ids) do
    if not said.err and said[2 * i] == 0 then
      drop(w)
      all = false
    end
  end
  return all
end

-- Call the waiters ids, whose entries are said. fresh: only the first, and the second is told that
-- it is the second. Returns the end of the claims; nil: dead waiters were dropped.
local function call(ids, said, fresh, claim)
  if not listening(ids) then return end
  local set, dead = {}, false
  for i, w in ipairs(ids) do
    local alive, _, who = parse(said[i])
    local second = fresh and i == 2
    if not second then
      set[#set + 1] = w
      set[#set + 1] = format(alive, now + claim, who)
    end
    if not tell(w, second and 'second' or 'go') then dead = w end
  end
  if dead then return drop(dead) end
  redis.call('HSET', waiters, unpack(set))
  claimed(claim)
  return now + claim
end

-- There is room: call the waiters in front of me, as long as there is room for their kind. fresh:
-- NAME was freed just now, so claims begin anew. chain: NAME still stands, and its holders have
-- changed, so a claim goes on: a stopped waiter is set aside however often they change. Returns the
-- end of the claims (ms), or nil: the lock is kept for no waiter; and the waiter in front of me for
-- which there is no room. all: the first in line, if known.
local function offer(me, fresh, chain, all)
  local n, aside, moved = (fresh or chain) and 2 or ROUND, 0, false
  while true do
    local ids, stop = before(me, n, all)
    all = nil
    if not ids[1] and (not stop or listening({stop})) then
      if stop and moved then watch('') end
      return nil, stop
    end
    local changed, ends = not ids[1], 0
    local said = changed and {} or redis.call('HMGET', waiters, unpack(ids))
    for i, w in ipairs(ids) do
      local alive, claim, who = parse(said[i])
      if chain and i > 1 then break end
      if alive < now then
        drop(w)
        changed = true
      elseif claim > now and claim <= now + CLAIM then -- later: the clock was set back
        ends = math.max(ends, claim)
      elseif claim > 0 and not fresh then
        tail(w, SHELF)
        put(w, alive, 0, who)
        aside = aside + 1
        changed = true
      end
    end
    if ends > 0 and not fresh then return ends end
    local first = fresh or (chain and aside == 0)
    if not changed then
      ends = call(ids, said, first, first and CLAIM or aside > 0 and SHORT or LATE)
      if ends then return ends end
    end
    moved = true
    if not first then n = math.min(MOST, math.max(ROUND, GROWTH * aside)) end
  end
end

-- NAME still stands, and its holders have changed, or there is a new head: call the head if there
-- is room for it.
local function advance(new)
  local _, stop = offer('', false, true)
  if stop and new then watch('') end
end
