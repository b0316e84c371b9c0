-- bloom_init: a Bloom filter in the layout of Redisson's RBloomFilter gets its parameters, once.
--
-- KEYS[1] config      hash   size, hashIterations, expectedInsertions, falseProbability; leasehold_shards where the filter is one of several
-- KEYS[2] bits        string the filter
-- ARGV[1] size        count  the number of bits
-- ARGV[2] hashes      count  the number of bits that an element sets
-- ARGV[3] expected    count  the number of elements
-- ARGV[4] probability text   the share of false positives with that number, as Java writes it
-- ARGV[5] shards      count  the number of filters; 0 for a filter that is not one of several
-- ARGV[6] room        count  the number of such filters for which the server must have the memory
-- ARGV[7] make        count  1: make the filter; 0: only check
--
-- Returns 1 when the script made the filter.
-- Returns a list of 5 texts: the configuration of a filter that exists, in the order of the arguments.
-- Returns a list of 3 counts when the server's memory is too small for `room` filters: the bytes that they need,
-- the bytes that are used, and maxmemory. Nothing was done.
-- Returns a text when there is no filter, and there is the memory: the run id of the server, or nothing if INFO is denied. Nothing was done.
-- Returns -4: a key holds something else.
-- Returns -6: there are bits and no configuration.
--
-- At least a hundredth of maxmemory must be left, because a server with a full memory grants no lock. A server that evicts any key can
-- always make room, so there a filter must only be smaller than maxmemory. One that evicts keys with an expiry might
-- find none, or those of locks. Without the permission to call INFO nothing is checked. Safe to repeat.
local config, bits = KEYS[1], KEYS[2]
local size, hashes, expected, probability, shards = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local room, make = tonumber(ARGV[6]), ARGV[7]

-- info returns a section of INFO, "" if the caller lacks the permission. From Redis 7.0 on, a denied command leaves no
-- entry in the ACL log.
local function info(section)
  if redis.acl_check_cmd and not redis.acl_check_cmd('info', section) then return '' end
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end

-- lacking returns the answer if the memory is full, or too small for strings of so many bytes, otherwise nil.
local function lacking(bytes)
  local text = info('memory')
  local function figure(name) return tonumber(string.match(text, '\n' .. name .. ':(%d+)') or 0) end
  local most = figure('maxmemory')
  if most == 0 then return nil end
  local used = figure('used_memory') - figure('mem_not_counted_for_evict')
  if string.find(text, 'maxmemory_policy:allkeys', 1, true) then used = 0 end
  if used >= most then return redis.error_reply("OOM command not allowed when used memory > 'maxmemory'.") end
  local needs = bytes + 10 -- with what the server puts around a string
  if string.find(text, 'mem_allocator:jemalloc', 1, true) then -- it has four sizes from one power of two to the next
    local _, power = math.frexp(needs)
    local step = 2 ^ (power - 3)
    needs = math.ceil(needs / step) * step
  end
  if needs * room <= most * 0.99 - used then return nil end
  return {needs * room, used, most}
end

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
local answer = lacking(math.ceil(size / 8))
if answer then return answer end
if make == '0' then return string.match(info('server'), 'run_id:(%x+)') or '' end
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
