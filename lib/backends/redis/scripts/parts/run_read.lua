-- run_read.lua - the record of --once, a string at PREFIXonce; run_record.h has its form.
local once = prefix .. 'once'

-- The record's text, state, fence, token, begin and end; nil: no record; false and a type: foreign
-- data. run_record_parse() accepts each record that passes here.
local function last_run()
  local text = redis.pcall('GET', once)
  if not text then return end
  if type(text) == 'table' then
    local kind = redis.call('TYPE', once).ok
    if kind == 'string' or kind == 'none' then error(text.err, 0) end
    return false, kind
  end
  local state, status, fence, token, begin, ended, kept, rest =
    string.match(text, '^dlock%-run1 (%l+) (%-?%d+) (%d+) ([0-9a-f]+) (%d+) (%d+) (%d+) dlock1(.?)')
  local known = state == 'running' or state == 'failed' or state == 'succeeded'
  if not known or #text >= SHOWN or string.find(text, '%c') or #token ~= 32
    or (rest ~= '' and rest ~= ' ') or tonumber(status) < -1 or tonumber(status) > 255
    or tonumber(fence) > 9.2e18 or #begin > 15 or #ended > 15 or tonumber(kept) > 9e12 then
    return false, 'string'
  end
  return text, state, fence, token, begin, ended
end
