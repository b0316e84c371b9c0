-- bloom_init: a Bloom filter in the layout of Redisson's RBloomFilter gets its parameters, once.
--
-- KEYS[1] config      hash   size, hashIterations, expectedInsertions, falseProbability; leasehold_shards where the filter is one of several
-- KEYS[2] bits        string the filter
-- ARGV[1] size        count  the number of bits
-- ARGV[2] hashes      count  the number of bits that an element sets
-- ARGV[3] expected    count  the number of elements
-- ARGV[4] probability text   the share of false positives with that number, as Java writes it
-- ARGV[5] shards      count  the number of filters; 0 for a filter that is not one of several
--
-- Returns 1 when the script made the filter.
-- Returns a list of texts: the configuration of a filter that exists, in the order of the arguments.
-- Returns -4: a key holds something else.
-- Returns -6: there are bits and no configuration.
--
-- Safe to repeat.
local config, bits = KEYS[1], KEYS[2]
local size, hashes, expected, probability, shards = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local is = redis.pcall('HMGET', config, 'size', 'hashIterations', 'expectedInsertions', 'falseProbability', 'leasehold_shards')
if is.err then
  if string.find(is.err, 'WRONGTYPE', 1, true) then return -4 end
  return is
end
if is[1] and is[2] then
  return {is[1], is[2], is[3] or '0', is[4] or '0', is[5] or '0'}
end
if redis.call('EXISTS', config) == 1 then return -4 end
local length = redis.pcall('STRLEN', bits)
if type(length) == 'table' then
  if string.find(length.err, 'WRONGTYPE', 1, true) then return -4 end
  return length
end
if length > 0 then return -6 end
-- The script takes the memory of the whole filter now, and not when an element first sets a high bit of it.
redis.call('SETBIT', bits, string.format('%.0f', size - 1), 0)
local fields = {'size', size, 'hashIterations', hashes, 'expectedInsertions', expected, 'falseProbability', probability}
if shards ~= '0' then
  fields[9], fields[10] = 'leasehold_shards', shards
end
local made = redis.pcall('HSET', config, unpack(fields))
if type(made) == 'table' then
  redis.pcall('DEL', bits) -- bits without a configuration would keep every later caller from making the filter
  return made
end
return 1
