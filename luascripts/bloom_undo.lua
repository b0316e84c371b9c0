-- bloom_undo: clears bits that a caller has set in a Bloom filter that was deleted just before.
--
-- KEYS[1] config hash   size, hashIterations, expectedInsertions, falseProbability
-- KEYS[2] bits   string the bits of the filter
-- ARGV[1] last   count  1 if no more bits follow: then a string without any bits set is deleted
-- ARGV[i] bit    count  the index of a bit that was 0 before the caller set it; up to 1000
--
-- Returns 1 if the bits are cleared. Other bits stay, because only the configuration may have been lost.
-- Returns 0 if the filter exists again; nothing was changed, because extra bits only cause false positives.
-- Returns -4: the key of the bits has the wrong type.
--
-- Safe to repeat: clearing a bit twice has no further effect.
local config, bits, last = KEYS[1], KEYS[2], ARGV[1]

if redis.call('EXISTS', config) == 1 then return 0 end
redis.call('DEL', config) -- deletes nothing; after a write that needs no memory, full memory does not stop the rest
if redis.call('EXISTS', bits) == 0 then return 1 end -- SETBIT would allocate the whole string again
for i = 2, #ARGV do
  local bit = ARGV[i]
  local was = redis.pcall('SETBIT', bits, bit, 0)
  if type(was) == 'table' then
    if string.find(was.err, 'WRONGTYPE', 1, true) then return -4 end
    return was
  end
end
if last == '1' and redis.call('BITCOUNT', bits) == 0 then redis.call('DEL', bits) end
return 1
