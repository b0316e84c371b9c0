-- include_fence: rejects a write with a stale fencing token. It has no keys of its own.
--
-- Each protected key has another key with the highest token seen, in decimal. An equal token is accepted, because a
-- holder may write many times.

-- stale returns nil if the token may write. Otherwise it returns the error for the caller:
--
--   FENCED <highest>  a higher token was seen
--   FENCEKEY …        the key of the highest token has another content
local function stale(highest_key, token)
  local highest = redis.pcall('GET', highest_key)
  if not highest then return nil end
  if type(highest) == 'table' and not string.find(highest.err, 'WRONGTYPE', 1, true) then return highest end
  if type(highest) == 'table' or not string.find(highest, '^[1-9]%d*$') then
    return redis.error_reply('FENCEKEY the register holds something else')
  end
  -- Compared as text, because a Lua number is exact only up to 2^53: the longer text is larger.
  if #highest > #token or #highest == #token and highest > token then
    return redis.error_reply('FENCED ' .. highest)
  end
end

-- raise stores the token as the highest one, before the data is written. So even if the write fails, older tokens are
-- rejected. keep is for how many ms the token is stored after that; 0 is permanently.
local function raise(highest_key, token, keep)
  if tonumber(keep) > 0 then
    redis.call('SET', highest_key, token, 'PX', keep)
  else
    redis.call('SET', highest_key, token)
  end
end
