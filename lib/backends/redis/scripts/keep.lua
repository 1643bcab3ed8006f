-- keep.lua - renew the vote of a Redlock server, and raise the fence counter. For a lock in one
-- Redis server: the renewal with which a run begins.
--
-- ARGV: db, prefix, value, ttl ms, fence ('0': leave the counter), heal ('1': set NAME if it is
-- free; a reader also joins other readers), restart grace ms and, with --once, the record of the
-- run that begins (parts/put.lua) -> is the vote ours (2: no, but the server was restarted within
-- the grace and has forgotten the vote), seen (ours and marked: the mark's text), now ms, with a
-- record: is the record there now (1 or 0)
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
-- include parts/fence.lua
local ttl, fence = tonumber(ARGV[4]), ARGV[5]

-- Before NAME is set: a script that fails half-way must not leave NAME set.
local function raise_fence()
  if fence ~= '0' and (tonumber(redis.call('GET', prefix .. 'fence')) or 0) < tonumber(fence) then
    keep_fence(fence, ttl)
  end
end
-- The most frequent case ends here, as in parts/first.lua.
if value == ARGV[3] and string.find(ARGV[7], '^%d+$') then
  raise_fence()
  redis.call('PEXPIRE', name, ARGV[4]) -- also allowed by a server that is out of memory
  redis.call('GET', name) -- see renew.lua
  return {1, false, now}
end
-- include parts/young.lua
-- include parts/holders.lua
-- include parts/put.lua
local reader = kind_of(ARGV[3]) == 's'
local grace, kept, record = string.match(ARGV[7], '^(%d+) ?(%d*) ?(.*)$')
local had, stands
if reader then had, stands = held(ARGV[3])
else marked_ours() end
-- Other readers take nothing from a reader.
local free = not seen or (reader and epoch)
if value ~= ARGV[3] and not had and not (free and ARGV[6] == '1') then
  return {free and young(tonumber(grace)) and 2 or 0, not free and shown(), now}
end
local recorded = kept ~= '' and put(kept, record) or nil
raise_fence()
if reader then
  admit(stands, 's', ttl, had)
  -- For the restart grace, see vote.lua. A new epoch begins without the key.
  if tonumber(redis.call('GET', prefix .. 'longest') or 0) <= ttl then
    redis.call('SET', prefix .. 'longest', ARGV[4], 'PX', ARGV[4])
  end
elseif value == ARGV[3] then
  redis.call('PEXPIRE', name, ARGV[4])
else
  redis.call('SET', name, ARGV[3], 'PX', ARGV[4])
end
redis.call('GET', name)
return {1, mark_of(stands or ARGV[3]), now, recorded}
