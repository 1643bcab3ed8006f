-- vote.lua - the vote of a Redlock server: as try.lua, but the first client that finds room gets
-- the vote. The head of the queue has no priority, because each server has its own queue, and all
-- of them would have to agree. Only readers wait for a writer in front of them, which would starve
-- beside readers that come without pause. ARGV and answer: parts/look.lua. The last argument:
-- restart grace ms, and 'run' to ask for the run record: a Redlock's client decides whether the run
-- is skipped. Then the answer of a vote goes on with 0, the record (false: none; the type of
-- foreign data), and for how long the record is kept (ms).
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
-- include parts/fence.lua
local grace = string.match(ARGV[6], '^%d+$')
-- include parts/first.lua
-- include parts/look.lua
-- include parts/grant.lua

-- Each server gets a value once: this server was asked under two names.
if grant then return {'twice', '0', 0, 0, ''} end
grant = open and status == 'busy'

-- The first live writer in line before me, and until when it counts as alive; dead writers are
-- dropped. Readers in front of a writer beyond IN_FRONT get the lock first.
local IN_FRONT = 64
local dropped = false
local function writer(me)
  local all = redis.call('ZRANGE', queue, 0, IN_FRONT - 1, 'WITHSCORES')
  for i = 1, #all, 2 do
    local id = all[i]
    if id == me or tonumber(all[i + 1]) >= SHELF then return end
    if kind_of(id) == 'x' then
      local alive = parse(redis.call('HGET', waiters, id))
      if alive < now then drop(id)
      elseif listening({id}) then return alive end
      dropped = true
    end
  end
end

local alive = grant and kind ~= 'x' and writer(id)
if alive then
  -- The writer waits for the readers that hold the lock, for as long as it is alive. A free lock is
  -- kept for the writer during its claim.
  local ends = not value and offer(id)
  grant = not value and not ends
  if ends then
    status = 'claim'
    left = ends - now
  elseif value then
    left = math.min(left, alive - now)
  end
end
-- A dropped writer may have been the head: call the next waiter if we get the lock, or tell it to
-- watch.
if dropped then w = grant and id or head(id) end
-- A head that did not retry within its claim is set aside, or each release would call it again.
if grant and w and w ~= id then
  local alive, claim, who = parse(redis.call('HGET', waiters, w))
  if claim > 0 and claim <= now then
    tail(w, SHELF)
    put(w, alive, 0, who)
    w = id
  end
end

-- Servers that have forgotten the lock since may have granted it to a holder or waiter known here.
-- The readers' largest ttl has its own key. The queue expires five ttl after the last word of a
-- waiter, and a live waiter speaks within one ttl: so a quarter of the queue's expiry is this ttl,
-- or up to a quarter more, in one step however many wait.
if grace > 0 then
  if epoch then longest = tonumber(redis.call('GET', prefix .. 'longest') or 0) end
  if redis.call('ZCARD', queue) > (redis.call('ZSCORE', queue, id) and 1 or 0) then
    longest = math.max(longest, math.ceil(redis.call('PTTL', queue) / 4))
  end
end
if grant then
  local text, kind
  -- include parts/run_read.lua
  -- Before the vote: a script that fails half-way must not have voted.
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
