-- finish.lua - the end of a hold, for a release. words: the rest of the least hold (ms, 0: the lock
-- is freed), and with --once the state, the status, and for how long the record is kept (ms).
--
-- The end of the run is recorded only if the lock is ours, in the script that ends the hold.
-- Otherwise an earlier release, whose answer was lost, may have written the record. moving: the
-- slot is being moved to this node. A record that is still on the old node must not be written
-- here: the move would fail, or overwrite the record. Returns the answer where the release ends
-- here.
local least
local function finish(words, moving)
  local ending, status, kept
  least, ending, status, kept = string.match(words, '^(%d+) ?(%l*) ?(%-?%d*) ?(%d*)$')
  if ending == '' then return end
  -- include parts/run.lua
  local text, state, fence, by, begin = last_run()
  if value ~= ARGV[3] then
    if by ~= token or state == 'running' then return end
    redis.call('PEXPIRE', once, digits(kept + lease)) -- a write, for WAIT: see confirm.c
    return {1, seen, now}
  end
  if text == false then return {3, state, now} end
  if not text and moving then
    error('TRYAGAIN the run record is on another node, or was deleted', 0)
  end
  -- The record of our begin has expired, or was deleted.
  if by ~= token then fence, begin = '0', '0' end
  -- A server that is out of memory refuses a first write that may need some: begin with PEXPIRE.
  redis.call('PEXPIRE', name, math.max(1, redis.call('PTTL', name)))
  write_run(ending, status, fence, begin, digits(now), kept)
end
