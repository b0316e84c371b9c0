-- include_fence: refuses a write with a stale fencing token. It has no keys of its own.
--
-- The register of the guarded key has the largest token that was seen there,
-- in decimal. An equal token is accepted: a holder may write many times.

-- stale returns nothing when the token may write, and otherwise the error to answer with:
--
--   FENCED <highest>  a larger token was seen
--   FENCEKEY …        the register holds something else
local function stale(register, token)
  local highest = redis.pcall('GET', register)
  if not highest then return nil end
  if type(highest) == 'table' and not string.find(highest.err, 'WRONGTYPE', 1, true) then return highest end
  if type(highest) == 'table' or not string.find(highest, '^[1-9]%d*$') then
    return redis.error_reply('FENCEKEY the register holds something else')
  end
  -- As text, longer is larger: a number would be a double, exact to 2^53 only.
  if #highest > #token or #highest == #token and highest > token then
    return redis.error_reply('FENCED ' .. highest)
  end
end

-- raise sets the register to the token, before the data is written: even if the
-- data is refused, older tokens stay out. keep is how many ms the register
-- lives after that; 0 is for ever.
local function raise(register, token, keep)
  if tonumber(keep) > 0 then
    redis.call('SET', register, token, 'PX', keep)
  else
    redis.call('SET', register, token)
  end
end
