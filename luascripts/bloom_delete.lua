-- bloom_delete: deletes a Bloom filter.
-- include: time
--
-- KEYS[1] config hash   size, hashIterations, expectedInsertions, falseProbability
-- KEYS[2] bits   string the bits of the filter
-- ARGV[1] before ms     the server's time at which this call becomes invalid; 0 only reads the server's time
--
-- Returns 1 if there is no filter now. Bits without a configuration, which was lost, are deleted as well.
-- Returns -4: a key has the wrong type; nothing was changed.
-- Returns the server's time in ms if the time `before` has come; nothing was changed.
--
-- Safe to repeat: a delayed duplicate arrives after `before`, so it cannot delete a filter that was created since.
local config, bits, before = KEYS[1], KEYS[2], tonumber(ARGV[1])

local now = clock()
if now >= before then return now end
local fields, length = redis.pcall('HMGET', config, 'size', 'hashIterations'), redis.pcall('STRLEN', bits)
for _, reply in ipairs({fields, length}) do
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then return -4 end
    return reply
  end
end
if not (fields[1] and fields[2]) and redis.call('EXISTS', config) == 1 then return -4 end
redis.call('DEL', config, bits)
return 1
