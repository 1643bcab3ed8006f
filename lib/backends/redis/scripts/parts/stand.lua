-- stand.lua - the last step of try.lua and vote.lua: not granted, so join the queue, or stay in it.
if id == '' then return {status, '0', left, redis.call('ZCARD', queue) + 1, seen or '', now, up, longest} end
local ticket = in_line(id) or tail(id, 0)
put(id, now + ttl, 0, string.sub(ARGV[3], 34))

-- Is the head still there? A new head that is not us is told; we learn it from our place.
while w and w ~= id and not tell(w, 'ping') do
  drop(w)
  w = head()
end
if w and w ~= id and w ~= first then tell(w, 'head') end

-- Never shortened: other waiters may have a longer ttl. (PEXPIRE GT needs Redis 7.) vote.lua reads it.
for _, key in ipairs({queue, waiters}) do
  if redis.call('PTTL', key) < 5 * ttl then redis.call('PEXPIRE', key, 5 * ttl) end
end
return {status, '0', left, redis.call('ZRANK', queue, id) + 1, seen or '', now, up, longest, ticket}
