-- finish.lua - the end of the run, for a release with --once. more: restart grace ms, what is left of the least hold (ms,
-- 0: the lock is freed), and with --once: state, status, and the time for which the record is kept (ms).
-- Only if the lock is ours it is written, in the step that ends the hold. Otherwise it may be there already: then the
-- answer to an earlier try of this release was lost.
-- missing: called before the record is written where there is none; for a cluster.
local function finish(missing)
  -- include parts/run.lua
  local text, state, fence, by, begin = last_run()
  if value ~= ARGV[3] then
    return by == token and state ~= 'running' and {1, seen, now}
  end
  if text == false then return {3, state, now} end
  if not text then missing() end
  if by ~= token then fence, begin = '0', '0' end -- that of our begin has expired, or was deleted
  -- A server that is out of memory refuses a script whose first write may need some, and no later one.
  redis.call('PEXPIRE', name, math.max(1, redis.call('PTTL', name)))
  write_run(more[3], more[4], fence, begin, digits(now), more[5])
end
