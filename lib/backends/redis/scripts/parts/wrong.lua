-- wrong.lua - the answer where another program has written the key: an error with the sentence for
-- the user (errors.c).
local function wrong_key(key, what)
  local quote = string.char(39)
  return redis.error_reply('FOREIGN the key ' .. quote .. key .. quote .. ' ' .. what)
end
local function wrong_name(found)
  return wrong_key(name, 'is a ' .. found .. ', not a lock of dlock or SET NX; use another name')
end
