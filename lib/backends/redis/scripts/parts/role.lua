-- role.lua - a replica refuses, even a writable replica (replica-read-only no): its master grants
-- the same lock, and the replica's data may be old. Where the user may not ask, the server counts
-- as a master.
local role = redis.pcall('INFO', 'replication')
if type(role) == 'string' and string.find(role, 'role:slave', 1, true) then
  return redis.error_reply('READONLY it has role:slave')
end
