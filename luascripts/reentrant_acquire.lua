-- reentrant_acquire: an owner takes the lock, or re-enters it, or stands in line.
-- include: stamp, seize
-- later: take
--
-- KEYS[1] lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[2] register  string  the latest fencing token; only with fencing
-- ARGV[1] owner    text   "<client uuid>:<number>"
-- ARGV[2] lease    ms     how long the lock lives without a renewal
-- ARGV[3] place    text   where the owner stands in line, "<offer> <waited> <again> <keep>" in ms; "" if it does not stand there, and marks the line if it is refused:
--                         the lease with which the lock is granted to it, how long it has been waiting, the
--                         time after which it asks again, and how long its place lives without a question
--                         where the server cannot count listeners
-- ARGV[4] counts   count  1 when the server counts all listeners of a channel
-- ARGV[5] want     count  the hold count that must result; missing for 1
-- ARGV[6] spare    count  how many tokens more the register is raised by; missing without fencing
--
-- Returns a string when the owner holds `want` times now: the fencing token, or
-- "0" for a re-entry.
-- Returns n >= 0: another owner has it, and n ms are left of its lease.
-- Returns -1: another owner has it, and the key has no expiry.
-- Returns {n}: as n, and no message reaches the process that asks.
-- Returns {n, deaf, wait}: as n, and the client of the other owner may keep the lock although no owner
-- uses it. It was told (include_linger), and an owner that does not wait asks again for wait ms. deaf is 1 if
-- no message reaches the process that asks, and else 0.
-- Returns -2: a re-entry found no hold of this owner; it was lost.
-- Returns -4: the key holds something else; nothing was done.
--
-- The release of another owner grants the lock to an owner in line. That owner learns
-- of it by this question: it finds itself the holder, with a full lease from now on.
--
-- Safe to repeat: `want` says what must result, so the second of two equal
-- calls finds it done and answers the same. The owner lives in one process,
-- which alone knows how often it holds; so `want` is right whatever count stands
-- here.
local lock, register = KEYS[1], KEYS[2]
local owner, lease, place, counts = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local want, spare = ARGV[5] or '1', ARGV[6]

-- Most locks are free, or a release has granted them to the owner that asks. To make all the
-- functions takes longer than to take such a lock.
if want == '1' and not register then -- mutant: never: speed
  local left = redis.pcall('PTTL', lock)
  -- mutant: never: speed
  if left == -2 then return seized(lock, owner, lease, stamped(redis.call('TIME'))) end
  local fields = redis.pcall('HMGET', lock, owner, 'leasehold_line')
  if fields[1] == '1' then -- mutant: never: speed
    redis.call('PEXPIRE', lock, math.max(left, lease)) -- even if it changes nothing: a replica refuses it
    return stamped(redis.call('TIME'))
  end
  if later().awaits(lock, owner, fields[2], place, counts) then return left end -- mutant: never: speed
end
return later().taken(lock, register, nil, owner, lease, want, spare, place, counts)
