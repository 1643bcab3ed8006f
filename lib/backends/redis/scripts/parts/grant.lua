-- grant.lua - the second step of try.lua and vote.lua: set NAME. The grant comes last: a script
-- that fails half-way (a right is missing) has granted nothing.
--
-- begin: called with the fencing token before the first write; a result is the answer, and nothing
-- is granted. A second result: the record of a success in the future, for a warning.
local function give(begin)
  local fence, refused = next_fence(kind == 'x' and 1 or 0)
  local ahead
  if begin and not refused then refused, ahead = begin(fence) end
  if refused then return refused end
  keep_fence(fence, ttl)
  if id ~= '' then drop(id) end
  local number
  if kind == 'x' then
    if w == id then
      watch(string.format(' %.0f ', ttl) .. ARGV[3], first == id and behind)
    end
    redis.call('SET', name, ARGV[3], 'PX', ttl)
  else
    number = admit(ARGV[3], kind, ttl, had)
    -- A failure here cannot take the grant back.
    if w == id then pcall(advance, true) end
  end
  return {'granted', fence, ttl, number and number + 1 or 0, ahead or '', now, up, longest}
end
