-- rw_inspect: one consistent snapshot of the lock; of one with many readers, a part of them.
-- include: rw
--
-- KEYS[1] lock    hash    mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] wish    string  "<owner> <since ms>" of a waiting writer
-- KEYS[3] never   string  never there (include_rw)
-- ARGV[1] beside  text    what the keys of read leases begin with
-- ARGV[2] cursor  text    where to go on; 0 to begin
--
-- Returns {lease, mode, {field, value, …}, {owner, patience}, cursor}: what is left of
-- the lease in ms (-1 no expiry, -2 no key), the mode or "", the holds without
-- those of dead readers, the writer that readers wait behind, if any, with
-- the ms for which it counts as alive without a question, and where to go on, 0 at
-- the end.
-- Returns -4 when the key holds something else. Changes nothing.
local lock, wish, never = KEYS[1], KEYS[2], KEYS[3]
local beside, cursor = ARGV[1], ARGV[2]

local mode, answer = side(lock)
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
readers(lock, beside, fields, function(owner, count, left)
  if left > 0 then
    holds[#holds + 1] = owner
    holds[#holds + 1] = tostring(count)
  end
end)
local first = wished(wish)
if first then writer = {first, redis.call('PTTL', wish)} end -- mutant: always: a reply ends at the first nil
return {redis.call('PTTL', lock), mode or '', holds, writer, page[1]}
