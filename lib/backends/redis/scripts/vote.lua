-- vote.lua - the vote of one server of several: as try.lua, but the first client that finds room
-- gets it. No client is kept waiting for the head of the queue: each server has its own queue, and
-- all of them would have to agree. Only readers are, by a writer that stands in line before them:
-- otherwise it would starve beside readers that come without pause.
-- ARGV and answer: parts/look.lua. The last argument: restart grace ms, and 'run' where the run
-- record is asked for: unlike a single server, one of several does not decide whether the run is
-- skipped. Then the answer of a vote goes on with 0, the record (false: there is none; the type of
-- foreign data in its place), and for how long the record is kept (ms).
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
-- include parts/look.lua
-- include parts/grant.lua

-- A server is asked once for each value, so this one was asked under two names.
if grant then return {'twice', '0', 0, 0, ''} end
grant = open and status == 'busy'

-- The first writer in line before me that lives; those that do not are dropped. Where so many
-- readers stand before it that it is not seen, they get the lock first.
local IN_FRONT = 64
local dropped = false
local function writer(me)
  local all = redis.call('ZRANGE', queue, 0, IN_FRONT - 1, 'WITHSCORES')
  for i = 1, #all, 2 do
    local id = all[i]
    if id == me or tonumber(all[i + 1]) >= SHELF then return end
    if kind_of(id) == 'x' then
      if parse(redis.call('HGET', waiters, id)) < now then drop(id)
      elseif listening({id}) then return id end
      dropped = true
    end
  end
end

if grant and kind ~= 'x' and writer(id) then
  -- While other readers hold the lock, it waits for them. A free lock is kept for it as long as it
  -- has a claim.
  local ends = not value and offer(id)
  grant = not value and not ends
  if ends then
    status = 'claim'
    left = ends - now
  end
end
-- It may have been the head: the next one is called if we are granted the lock, or told to watch.
if dropped then w = grant and id or head(id) end

-- A holder or waiter here may have got its lock from other servers, which have forgotten it since.
-- The largest ttl of the readers here is in a key of its own. The queue expires five ttl after the
-- last word of a waiter, and a waiter that is alive has spoken within one: so a quarter of what is
-- left is its ttl, or up to a quarter more, in one step however many wait.
if grace > 0 then
  if epoch then longest = tonumber(redis.call('GET', prefix .. 'longest') or 0) end
  if redis.call('ZCARD', queue) > (redis.call('ZSCORE', queue, id) and 1 or 0) then
    longest = math.max(longest, math.ceil(redis.call('PTTL', queue) / 4))
  end
end
if grant then
  local text, kind
  -- include parts/run_read.lua
  -- Before the vote: a script that fails half-way must not have given one.
  if rest == 'run' then text, kind = last_run() end
  local answer = give()
  if rest == 'run' then
    answer[9] = 0
    answer[10] = text or kind or false
    answer[11] = redis.call('PTTL', once)
  end
  return answer
end
-- include parts/stand.lua
