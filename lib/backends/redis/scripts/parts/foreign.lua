-- foreign.lua - what names a holder that is not dlock, in place of a token: a digest of its value.
local function foreign_token(text) return string.sub(redis.sha1hex(text), 1, 32) end
