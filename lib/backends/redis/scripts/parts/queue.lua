-- queue.lua - the waiters of a lock, in the order in which they came. script.h has the formats of keys and messages.
--
-- The server's work does not grow with the number of waiters: only the first two are looked at. Dead entries are
-- dropped when they come to the front, each at most once.
--
-- A waiter that was called but did not retry (it is stopped, or its machine is cut off) is set aside: SHELF is added
-- to its ticket, so that it stands behind all the others until its own next try gives it a new ticket. So when the
-- first in the queue is set aside, all are, and no other client has to wait for them. Without that, a stopped waiter
-- alone in the queue would be called again and again, and keep the lock from newcomers.
--
-- w: the id of a waiter.
local SHELF = 4e15
local CLAIM = 1000 -- ms that a waiter has for its retry once it was called; REDIS_SCRIPT_CLAIM in script.h
local queue, waiters = prefix .. 'queue', prefix .. 'waiters'
-- include parts/clock.lua

local function at(i) return redis.call('ZRANGE', queue, i, i)[1] end

local function drop(w)
  redis.call('ZREM', queue, w)
  redis.call('HDEL', waiters, w)
end

-- True: a client listens.
local function tell(w, message) return redis.call('PUBLISH', prefix .. 'wake:' .. w, message) > 0 end

-- alive: until then the waiter counts as alive; claim: until then it may take the lock, 0: it was not called (both ms).
local function entry(w)
  local alive, claim, who = string.match(redis.call('HGET', waiters, w) or '', '^(%d+) (%d+) (.*)$')
  return tonumber(alive or 0), tonumber(claim or 0), who or ''
end

local function put(w, alive, claim, who)
  redis.call('HSET', waiters, w, string.format('%.0f %.0f ', alive, claim) .. who)
end

-- Put w behind the others of its kind (base 0: in the queue; SHELF: set aside). A ticket is the time in us, so that
-- it does not depend on the others' (which may be set aside); the last one's keeps the order when the clock goes back.
-- Exact until 2096.
local function tail(w, base)
  local ticket, last = base + time[1] * 1000000 + time[2], redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  last = tonumber(last or 0)
  if (last >= SHELF) == (base > 0) then ticket = math.max(ticket, last + 1) end
  redis.call('ZADD', queue, string.format('%.0f', ticket), w)
  return ticket
end

-- Its ticket; nil: it is not in the queue, or set aside.
local function in_line(w)
  local ticket = tonumber(redis.call('ZSCORE', queue, w) or SHELF)
  return ticket < SHELF and ticket or nil
end

-- w has lost its place, which that ticket gave it, and takes it again. One that was set aside stays there, and a
-- ticket from the future is none: the clock was set back.
local function rejoin(w, ticket, alive, who)
  if ticket > time[1] * 1000000 + time[2] or redis.call('ZSCORE', queue, w) then return end
  redis.call('ZADD', queue, string.format('%.0f', ticket), w)
  put(w, alive, 0, who)
end

-- The first that is alive by its own last word.
local function head()
  while true do
    local w = at(0)
    if not w or entry(w) >= now then return w end
    drop(w)
  end
end

-- There is a new head: it has to watch NAME from now on. One that does not listen is dead.
local function watch()
  while true do
    local w = head()
    if not w or tell(w, 'head') then return end
    drop(w)
  end
end

-- NAME is free: call the head, unless that is me. A head that was called before and did not retry in time is set
-- aside; fresh: NAME was freed just now, so each head has a new claim. The second is told too, so that it retries when
-- the claim of the first one has ended.
-- Returns the waiter that was called and the end of its claim (ms), or nil: there is none for which NAME is kept.
local function offer(me, fresh)
  while true do
    local w = head()
    if not w or w == me then return w, 0 end
    local alive, claim, who = entry(w)
    if not tell(w, 'go') then drop(w)
    elseif not in_line(w) then return
    elseif not fresh and claim > 0 and claim <= now then
      tail(w, SHELF)
      put(w, alive, 0, who)
    elseif not fresh and claim > 0 then return w, claim
    else
      put(w, alive, now + CLAIM, who)
      while true do
        local second = at(1)
        if not second or tell(second, 'next') then return w, now + CLAIM end
        drop(second)
      end
    end
  end
end
