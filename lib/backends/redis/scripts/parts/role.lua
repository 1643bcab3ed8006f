-- role.lua - a replica refuses, even one that may write (replica-read-only no): its master grants
-- the same lock, and what the replica knows of it may be old. Where the user may not ask, the
-- server counts as a master.
local role = redis.pcall('INFO', 'replication')
if type(role) == 'string' and string.find(role, 'role:slave', 1, true) then
  return redis.error_reply('READONLY it has role:slave')
end
