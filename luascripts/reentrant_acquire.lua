-- reentrant_acquire: an owner takes the lock, or enters it once more.
--
-- KEYS[1] lock      hash    owner -> hold count
-- KEYS[2] register  string  the latest fencing token; only with fencing
-- ARGV[1] owner  text   "<client uuid>:<number>"
-- ARGV[2] lease  ms     what the lock lives on without a renewal
-- ARGV[3] want   count  the hold count that must result; 1 for the first hold
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
local owner, lease, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if redis.call('EXISTS', lock) == 0 then
  if want > 1 then return -2 end
  local token = grown(register, redis.call('TIME'))
  redis.call('HSET', lock, owner, 1) -- refused here when memory is full: nothing is left behind
  local expiry = redis.pcall('PEXPIRE', lock, lease)
  if type(expiry) == 'table' and expiry.err then
    redis.call('DEL', lock) -- without the right to PEXPIRE we would leave a lock that never ends
    return expiry
  end
  return token
end

local fields = redis.pcall('HGETALL', lock)
if fields.err then
  if string.find(fields.err, 'WRONGTYPE', 1, true) then return -4 end
  return fields
end
local held = false
for i = 1, #fields, 2 do
  if not string.find(fields[i + 1], '^[0-9]+$') then return -4 end -- some other hash, or a read/write lock
  held = held or fields[i] == owner
end
local left = redis.call('PTTL', lock)
if not held then
  if want > 1 then return -2 end
  return left
end

-- PEXPIRE before HSET: after a write that cannot grow memory, Redis lets the
-- rest of the script through even when memory is full.
redis.call('PEXPIRE', lock, math.max(left, lease))
redis.call('HSET', lock, owner, want)
if want > 1 then return '0' end
return grown(register, redis.call('TIME'))
