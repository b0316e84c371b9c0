-- bloom_delete: deletes a Bloom filter.
-- include: time
--
-- KEYS[1] config hash   size, hashIterations, expectedInsertions, falseProbability
-- KEYS[2] bits   string the filter
-- ARGV[1] before ms     the server's time before which the script deletes it; 0 only asks for that time
--
-- Returns 1 when there is no filter. Bits without a configuration, which was lost, are deleted as well.
-- Returns -4: a key holds something else; nothing was done.
-- Returns the server's time in ms when before has come; nothing was done.
--
-- Safe to repeat. A copy that comes late does nothing, so it deletes no filter that was made since.
local config, bits, before = KEYS[1], KEYS[2], tonumber(ARGV[1])

local now = clock()
if now >= before then return now end
local is, length = redis.pcall('HMGET', config, 'size', 'hashIterations'), redis.pcall('STRLEN', bits)
for _, reply in ipairs({is, length}) do
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then return -4 end
    return reply
  end
end
if not (is[1] and is[2]) and redis.call('EXISTS', config) == 1 then return -4 end
redis.call('DEL', config, bits)
return 1
