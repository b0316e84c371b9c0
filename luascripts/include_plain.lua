-- include_plain: the hash of a lock without sides: a plain or a fair one. It has no keys of its own.
-- include: owner

-- fairly reports whether an owner owns a fair lock, or false if a plain one; nil if the owner does not show it. The number
-- in an owner string of ours begins with one zero for a fair lock, and with two for a plain one. Redisson's numbers
-- begin with none, and neither do those of versions before this rule.
local function fairly(owner)
  if string.sub(owner, 15, 15) ~= '7' or string.sub(owner, 38, 38) ~= '0' then return nil end
  return string.sub(owner, 39, 39) ~= '0'
end

-- plain returns the hash as a list of fields and values, empty when there is no such
-- key; or nil and an answer for the caller: -4 when the key holds something else, or an
-- error. Such a lock has one owner and one line at most, so a larger hash is not read. With
-- fair, true or false, a lock of the other type is something else, where its owner shows the type; without fair, it is not.
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
    if fair ~= nil and fairly(fields[i]) == not fair then return nil, -4 end
  end
  return fields
end
