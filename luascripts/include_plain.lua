-- include_plain: reads the hash of a plain or fair lock. It has no keys of its own.
-- include: owner

-- is_fair reports whether an owner string is one of a fair lock (true) or of a plain lock (false).
-- In owner strings of leasehold, the number begins with one zero for a fair lock, and with two for
-- a plain lock. is_fair returns nil if the number begins with no zero: Redisson's owners, and those
-- of earlier versions of leasehold.
local function is_fair(owner)
  if string.sub(owner, 15, 15) ~= '7' or string.sub(owner, 38, 38) ~= '0' then return nil end
  return string.sub(owner, 39, 39) ~= '0'
end

-- read_plain returns the hash as a list of fields and values; the list is empty if the lock is
-- free. If the key is no such lock, or a command fails, it returns nil and the reply for the
-- caller: -4 or an error. A lock has at most one owner and one queue, so a larger hash is not read.
-- fair is the required type of lock: true, false, or nil for both. An owner whose type is unknown
-- fits both.
local function read_plain(lock, fair)
  local size = redis.pcall('HLEN', lock)
  if type(size) == 'table' then
    if string.find(size.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, size
  end
  if size == 0 then return {} end -- the usual case
  if size > 2 then return nil, -4 end
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    local holds = is_owner(fields[i]) and string.find(fields[i + 1], '^[0-9]+$')
    if not holds and fields[i] ~= 'leasehold_line' then return nil, -4 end
    if fair ~= nil and is_fair(fields[i]) == not fair then return nil, -4 end
  end
  return fields
end
