-- mark.lua - a broken hold (break.lua): BREAK stands behind the holder's value, and the hold goes
-- on until the holder's release. PREFIXbreak:TOKEN has the mark's text, '<when, ms> <by whom>'.
local BREAK = ' break=1'

local function is_marked(text) return string.find(text, '%x dlock1.* break=1$') end

local function mark_key(text) return prefix .. 'break:' .. string.match(text, '(%x+) ') end

-- The mark's text; '': it has expired, or is on another node of a cluster. False: there is no mark.
local function mark_of(text)
  if not is_marked(text) then return false end
  local said = redis.pcall('GET', mark_key(text))
  return type(said) == 'string' and said or ''
end

-- The hold ends. What cannot be deleted expires.
local function unmark(text)
  if is_marked(text) then redis.pcall('DEL', mark_key(text)) end
end

-- True: our exclusive hold is marked. From here on ARGV[3] is our value with the mark.
local function marked_ours()
  if value ~= ARGV[3] .. BREAK then return false end
  ARGV[3] = value
  return true
end
