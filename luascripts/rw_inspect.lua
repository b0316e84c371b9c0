-- rw_inspect: reads a read/write lock in one consistent snapshot. With many readers, a call reads only some of them.
-- include: rw
--
-- KEYS[1] lock    hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] intent  string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] never   string  a key that never exists (include_rw)
-- ARGV[1] prefix  text    what the keys of read leases begin with
-- ARGV[2] cursor  text    the cursor of HSCAN; 0 for the first call
--
-- Returns {lease, mode, {field, value, …}, {owner, timeout}, cursor}: the remaining lease in ms (-1 no
-- expiry, -2 no key); the mode, or ""; the holds, without those of dead readers; the writer that
-- readers wait behind, if any, with the ms after which it counts as dead if it does not retry; and the
-- cursor for the next call, 0 at the end.
-- Returns -4 if the key is not a read/write lock.
--
-- Changes nothing.
local lock, intent, never = KEYS[1], KEYS[2], KEYS[3]
local prefix, cursor = ARGV[1], ARGV[2]

local mode, answer = read_rw(lock)
if mode == nil then return answer end
local holds, writer = {}, {}
local page = mode and redis.call('HSCAN', lock, cursor, 'COUNT', 50) or {'0', {}} -- mutant: operand 2: speed
local fields = page[2]
for i = 1, #fields, 2 do
  if string.sub(fields[i], -6) == ':write' then
    holds[#holds + 1] = fields[i]
    holds[#holds + 1] = fields[i + 1]
  end
end
each_reader(lock, prefix, fields, function(owner, count, left)
  if left > 0 then
    holds[#holds + 1] = owner
    holds[#holds + 1] = tostring(count)
  end
end)
local waiting = read_intent(intent)
if waiting then writer = {waiting, redis.call('PTTL', intent)} end -- mutant: always: a reply ends at the first nil
return {redis.call('PTTL', lock), mode or '', holds, writer, page[1]}
