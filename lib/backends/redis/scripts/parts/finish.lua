-- finish.lua - the end of a hold, for a release. words: what is left of the least hold (ms, 0: the
-- lock is freed), and with --once the state, the status, and the time for which the record is kept
-- (ms).
--
-- The end of the run is recorded only if the lock is ours, in the step that ends the hold.
-- Otherwise the record may be there already: then the answer to an earlier try of this release was
-- lost. moving: the slot is being moved to this node. The record may still be on the old node, and
-- must not be written here then: the move would fail, or overwrite the record. Returns the answer,
-- if that was all.
local least
local function finish(words, moving)
  local ending, status, kept
  least, ending, status, kept = string.match(words, '^(%d+) ?(%l*) ?(%-?%d*) ?(%d*)$')
  if ending == '' then return end
  -- include parts/run.lua
  local text, state, fence, by, begin = last_run()
  if value ~= ARGV[3] then return by == token and state ~= 'running' and {1, seen, now} end
  if text == false then return {3, state, now} end
  if not text and moving then
    error('TRYAGAIN the run record is on another node, or was deleted', 0)
  end
  -- The record of our begin has expired, or was deleted.
  if by ~= token then fence, begin = '0', '0' end
  -- A server that is out of memory refuses a script whose first write may need some, and no later
  -- one.
  redis.call('PEXPIRE', name, math.max(1, redis.call('PTTL', name)))
  write_run(ending, status, fence, begin, digits(now), kept)
end
