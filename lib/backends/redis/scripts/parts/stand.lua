-- stand.lua - the last step of try.lua and vote.lua: not granted, so join the queue, or stay there.
seen = shown() or ''
if id == '' then
  return {status, '0', left, redis.call('ZCARD', queue) + 1, seen, now, up, longest}
end
local ticket = in_line(id)
local joins = not ticket
if joins then ticket = tail(id, 0) end
put(id, now + ttl, 0, string.match(ARGV[3], ' (.*)'))

-- Is the head still there? A waiter that joins asks, by a message; in a cluster each message goes
-- to all nodes, so the others ask only a late head: a live waiter tries every third of its ttl. A
-- new head that is not us is told; we learn it from our place, and try again where there is room.
-- (After a claim: the head was called.)
local function late(w)
  local alive, _, who = parse(redis.call('HGET', waiters, w))
  return alive - now < 0.6 * (tonumber(string.match(who, ' ttl=(%d+)$')) or ttl)
end
if value and status ~= 'claim' and w and w ~= id and (joins or late(w)) then
  while w and w ~= id and not tell(w, w == first and 'ping' or 'head') do
    drop(w)
    w = head(id)
  end
  if w == id and open then
    status = 'claim'
    left = 0
  end
end

-- Never shortened: other waiters may have a longer ttl. (PEXPIRE GT needs Redis 7.) vote.lua reads
-- this expiry.
if redis.call('PTTL', queue) < 5 * ttl then
  redis.call('PEXPIRE', queue, 5 * ttl)
  redis.call('PEXPIRE', waiters, 5 * ttl)
end
return {status, '0', left, redis.call('ZRANK', queue, id) + 1, seen, now, up, longest, ticket}
