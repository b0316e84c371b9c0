-- include_plain: the hash of a lock without sides: a plain or a fair one. It has no keys of its own.
-- include: owner

-- fairly reports whether an owner owns a fair lock, or false if a plain one; nil if it does not say. The number in an owner string of
-- ours is odd for a fair lock. It has 19 digits; a shorter one is of a test with a clock of its own.
local function fairly(owner)
  if #owner ~= 56 or string.sub(owner, 15, 15) ~= '7' then return nil end
  return tonumber(string.sub(owner, -1)) % 2 == 1
end

-- plain returns the hash as a list of fields and values, empty when there is no such
-- key; or nil and an answer for the caller: -4 when the key holds something else, or an
-- error. Such a lock has one owner and one line at most, so a larger hash is not read. With
-- fair, true or false, a lock of the other kind is something else, where its owner says so; without it, it is not.
local function plain(lock, fair)
  local size = redis.pcall('HLEN', lock)
  if type(size) == 'table' then
    if string.find(size.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, size
  end
  if size == 0 then return {} end -- most locks are free
  if size > 2 then return nil, -4 end
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    local holds = is_owner(fields[i]) and string.find(fields[i + 1], '^[0-9]+$')
    if not holds and fields[i] ~= 'leasehold_line' then return nil, -4 end
    if holds and fair ~= nil and fairly(fields[i]) == not fair then return nil, -4 end
  end
  return fields
end
