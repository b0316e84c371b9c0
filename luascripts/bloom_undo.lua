-- bloom_undo: clears bits that a caller set in a Bloom filter that somebody deleted just before.
--
-- KEYS[1] config hash   size, hashIterations, expectedInsertions, falseProbability
-- KEYS[2] bits   string the filter
-- ARGV[1] last   count  1 when no more bits follow: then a string without a bit is deleted
-- ARGV[i] bit    count  an index: the bit was 0 before the caller set it; a thousand at most
--
-- Returns 1 when the bits are cleared. Bits that others set without a configuration stay: it may have been lost.
-- Returns 0 when there is a filter again, in which some bits too many are harmless: nothing was done.
-- Returns -4: the key of the bits holds something else.
--
-- Safe to repeat.
local config, bits, last = KEYS[1], KEYS[2], ARGV[1]

if redis.call('EXISTS', config) == 1 then return 0 end
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
