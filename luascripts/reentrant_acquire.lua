-- reentrant_acquire: an owner takes the lock, or enters it once more, or waits in line.
--
-- KEYS[1] lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[2] register  string  the latest fencing token; only with fencing
-- ARGV[1] owner  text   "<client uuid>:<number>"
-- ARGV[2] lease  ms     what the lock lives on without a renewal
-- ARGV[3] want   count  the hold count that must result; 1 for the first hold
-- ARGV[4] spare  count  how many tokens more the register is raised by
-- ARGV[5] offer  ms     what the lock is granted for when it comes to who stands in line; 0 does not stand in line
-- ARGV[6] keep   ms     how long the place in line is kept unheard
-- ARGV[7] ask    count  the number of this question, which comes back when the lock comes to who stands in line
--
-- Returns a string when the owner holds `want` times now: the fencing token, or
-- "0" for a re-entry.
-- Returns n >= 0: another owner has it, and n ms are left of its lease.
-- Returns -1: another owner has it, and the key has no expiry.
-- Returns -2: a re-entry found no hold of this owner; it was lost.
-- Returns -4: the key holds something else; nothing was done.
--
-- Safe to repeat: `want` says what must result, so the second of two equal
-- calls finds it done and answers the same. The owner lives in one process,
-- which alone knows how often it holds; so whatever count stands here, `want`
-- is right.
local lock, register = KEYS[1], KEYS[2]
local owner, lease, want, spare = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local free = redis.call('EXISTS', lock) == 0
local held, line = false, ''
if not free then
  local fields = redis.pcall('HGETALL', lock)
  if fields.err then
    if string.find(fields.err, 'WRONGTYPE', 1, true) then return -4 end
    return fields
  end
  free = true -- but for an owner
  for i = 1, #fields, 2 do
    if fields[i] == 'leasehold_line' then
      line = fields[i + 1]
    elseif string.find(fields[i + 1], '^[0-9]+$') then
      free = false
    else
      return -4 -- some other hash, or a read/write lock
    end
    held = held or fields[i] == owner
  end
end

if free then
  if want ~= '1' then return -2 end
  local token = grown(register, redis.call('TIME'), 0, spare)
  redis.call('HSET', lock, owner, 1) -- refused here when memory is full: nothing is left behind
  local expiry = redis.pcall('PEXPIRE', lock, lease)
  if type(expiry) == 'table' then
    redis.call('DEL', lock) -- without the right to PEXPIRE we would leave a lock that never ends
    return expiry
  end
  return token
end

local left = redis.call('PTTL', lock)
if not held then
  if want ~= '1' then return -2 end
  local offer = ARGV[5]
  if offer ~= '0' then
    local keep, ask = ARGV[6], ARGV[7]
    local time = redis.call('TIME')
    local deadline = time[1] * 1000 + math.floor(time[2] / 1000) + keep
    redis.pcall('HSET', lock, 'leasehold_line', enlisted(line, owner, offer, register and 1 or 0, ask, deadline)) -- who is refused this must ask again and again
  end
  return left
end

-- PEXPIRE before HSET: after a write that cannot grow memory, Redis lets the
-- rest of the script through even when memory is full.
redis.call('PEXPIRE', lock, math.max(left, lease))
redis.call('HSET', lock, owner, want)
if want ~= '1' then return '0' end
return grown(register, redis.call('TIME'), 0, spare)
