-- bloom_init: creates a Bloom filter in the layout of Redisson's RBloomFilter.
--
-- KEYS[1] config      hash   size, hashIterations, expectedInsertions, falseProbability; leasehold_shards if the filter is one of several shards
-- KEYS[2] bits        string the bits of the filter
-- ARGV[1] size        count  the number of bits
-- ARGV[2] hashes      count  the number of bits that an element sets
-- ARGV[3] expected    count  the expected number of elements
-- ARGV[4] probability text   the false positive rate with that number, formatted as in Java
-- ARGV[5] shards      count  the number of shards; 0 for a filter that is not sharded
-- ARGV[6] copies      count  for how many such filters the server must have memory
-- ARGV[7] create      count  1: create the filter; 0: only check
--
-- Returns 1 if the script created the filter.
-- Returns a list of 5 texts: the configuration of a filter that exists, in the order of the arguments.
-- Returns a list of 3 counts if the memory of the server is too small for `copies` filters: the bytes that they need, the
-- bytes in use, and maxmemory. Nothing was changed.
-- Returns a text if there is no filter, and enough memory: the run id of the server, or "" if INFO is denied. Nothing was
-- changed.
-- Returns -4: a key has the wrong type.
-- Returns -6: there are bits, but no configuration.
--
-- After the creation, at least 1 % of maxmemory must be left, because a server with full memory grants no locks. A server with
-- an allkeys eviction policy can always make room, so there the filters only have to be smaller than maxmemory. One that evicts
-- only keys with an expiry might find none, or those of locks. If INFO is denied, the memory is not checked.
--
-- Safe to repeat: a filter that exists is not changed.
local config, bits = KEYS[1], KEYS[2]
local size, hashes, expected, probability, shards = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local copies, create = tonumber(ARGV[6]), ARGV[7]

-- info returns a section of INFO, or "" if INFO is denied. From Redis 7.0 on, it checks the permission first, so that a denied
-- command does not appear in the ACL log.
local function info(section)
  if redis.acl_check_cmd and not redis.acl_check_cmd('info', section) then return '' end
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end

-- missing_memory returns the reply of the script if the memory is full, or too small for `copies` strings of so many bytes;
-- otherwise nil.
local function missing_memory(bytes)
  local text = info('memory')
  local function number_of(name) return tonumber(string.match(text, '\n' .. name .. ':(%d+)') or 0) end
  local maxmemory = number_of('maxmemory')
  if maxmemory == 0 then return nil end
  local used = number_of('used_memory') - number_of('mem_not_counted_for_evict')
  if string.find(text, 'maxmemory_policy:allkeys', 1, true) then used = 0 end
  if used >= maxmemory then return redis.error_reply("OOM command not allowed when used memory > 'maxmemory'.") end
  local needs = bytes + 10 -- with the server's header of a string
  if string.find(text, 'mem_allocator:jemalloc', 1, true) then -- its allocation sizes are a quarter of a power of two apart
    local _, power = math.frexp(needs)
    local step = 2 ^ (power - 3)
    needs = math.ceil(needs / step) * step
  end
  if needs * copies <= maxmemory * 0.99 - used then return nil end
  return {needs * copies, used, maxmemory}
end

local fields = redis.pcall('HMGET', config, 'size', 'hashIterations', 'expectedInsertions', 'falseProbability', 'leasehold_shards')
if fields.err then
  if string.find(fields.err, 'WRONGTYPE', 1, true) then return -4 end
  return fields
end
if fields[1] and fields[2] then
  return {fields[1], fields[2], fields[3] or '0', fields[4] or '0', fields[5] or '0'}
end
if redis.call('EXISTS', config) == 1 then return -4 end
local length = redis.pcall('STRLEN', bits)
if type(length) == 'table' then
  if string.find(length.err, 'WRONGTYPE', 1, true) then return -4 end
  return length
end
if length > 0 then return -6 end
local answer = missing_memory(math.ceil(size / 8))
if answer then return answer end
if create == '0' then return string.match(info('server'), 'run_id:(%x+)') or '' end
-- Allocate the memory of the whole filter now, rather than when a high bit is first set by an element.
redis.call('SETBIT', bits, string.format('%.0f', size - 1), 0)
local fields = {'size', size, 'hashIterations', hashes, 'expectedInsertions', expected, 'falseProbability', probability}
if shards ~= '0' then
  fields[9], fields[10] = 'leasehold_shards', shards
end
local written = redis.pcall('HSET', config, unpack(fields))
if type(written) == 'table' then
  redis.pcall('DEL', bits) -- bits without a configuration would keep every later call from creating the filter
  return written
end
return 1
