-- try.lua - take the lock if there is room and no waiter comes before us.
--
-- ARGV and answer: parts/look.lua. The last argument: restart grace, the time within which the
-- success of a run counts (0: no run records), the least hold (all ms), and 'later' for a run that
-- has not begun: its record is written by keep.lua.
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
-- include parts/fence.lua
local grace = string.match(ARGV[6], '^(%d+) 0 0$')
-- include parts/first.lua
-- include parts/look.lua
-- include parts/grant.lua
local counts, least, later = string.match(rest, '^(%d+) (%d+) ?(%l*)$')

-- --once: after a success, or where the run record's key holds foreign data, the lock is not taken:
-- the client leaves the queue, the next waiter is called, and the answer is {'skipped', '0', 0, 0,
-- record, ...} or {'record', '0', 0, 0, type, ...}. Otherwise the record is written before anything
-- else: a server that is out of memory refuses the first write, and nothing has changed.
local function begin(fence)
  -- include parts/run.lua
  local text, state, _, _, _, ended = last_run()
  local age = state == 'succeeded' and now - ended
  local ahead = age and age < -1000000 -- run_record.h
  if text == false or (age and not ahead and age < tonumber(counts)) then
    if value then redis.call('DEL', name) end -- ours already; the record was overwritten since
    value = false
    if id ~= '' then
      drop(id)
      claimed(nil)
    end
    near(function() offer('', true) end)
    return {text and 'skipped' or 'record', '0', 0, 0, text or state, now, up, longest}
  end
  if later == '' then write_run('running', '-1', fence, digits(now), '0', counts) end
  return nil, ahead and text
end

if open and not grant and status == 'busy' then
  local ends, stop
  if w and w ~= id then ends, stop = offer(id) end
  if ends then
    status = 'claim'
    left = ends - now
  elseif not stop then
    grant = true
    if id ~= '' then w = id end
  end
end
if grant then
  ttl = math.max(ttl, tonumber(least))
  return give(counts ~= '0' and begin)
end
-- include parts/stand.lua
