-- keep.lua - renew the vote of one server of several, and raise its fence counter.
--
-- ARGV: db, prefix, value, ttl ms, fence ('0': leave the counter), heal ('1': set NAME if it is free), restart grace ms
-- -> is it ours (2: no, but the server was restarted within the grace and has forgotten it), seen, now ms
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/young.lua
-- include parts/clock.lua
if value ~= ARGV[3] and (seen or ARGV[6] ~= '1') then
  return {not seen and young(tonumber(ARGV[7])) and 2 or 0, seen, now}
end

-- The counter first: a script that fails half-way must not leave NAME set.
local fence = ARGV[5]
if fence ~= '0' and tonumber(redis.call('GET', prefix .. 'fence') or 0) < tonumber(fence) then
  redis.call('SET', prefix .. 'fence', fence, 'PX', string.format('%.0f', math.max(86400000, 10 * ARGV[4])))
end
redis.call('SET', name, ARGV[3], 'PX', ARGV[4])
return {1, false, now}
