-- first.lua - the most frequent case of try.lua and vote.lua ends here: an exclusive client's first
-- try at a free lock without waiters. Making the functions of the other parts takes the server as
-- long as this try. The steps of parts/grant.lua. grace: ms, or nil: the last argument asks for
-- more than a grace.
if not seen and ARGV[4] == '' and grace and string.find(ARGV[3], '^%x') then
  -- include parts/uptime.lua
  local line, ttl = redis.pcall('ZRANGE', prefix .. 'queue', '0', '0'), tonumber(ARGV[5])
  local up = grace == '0' and 0 or uptime()
  if not line.err and not line[1] and up >= tonumber(grace) then
    local fence, refused = next_fence(1)
    if refused then return refused end
    keep_fence(fence, ttl)
    redis.call('SET', name, ARGV[3], 'PX', ARGV[5])
    return {'granted', fence, ttl, 0, '', now, up, 0}
  end
end
