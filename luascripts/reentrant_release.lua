-- reentrant_release: an owner gives holds back; with the last, the lock goes to the next in line.
-- include: channels, hand, keeps
-- later: give
--
-- KEYS[1] lock      hash    owner -> hold count, and the line (include_line)
-- KEYS[2] register  string  the latest fencing token; only with fencing
-- ARGV[1]  owner    text   "<client uuid>:<number>"
-- ARGV[2]  publish  text   the command that reaches waiters: PUBLISH or SPUBLISH
-- ARGV[3]  counts   count  1 when the server counts all listeners of a channel
-- ARGV[4]  leave    count  the hold count that must remain; 0 frees the lock, and so does a missing one
-- ARGV[5]  heir     text   the owner that waits in the same process; this and the following arguments are missing if there is none
-- ARGV[6]  offer    ms     the lease with which the lock is granted to the heir
-- ARGV[7]  again    ms     the time after which the heir asks again
-- ARGV[8]  keep     ms     how long its place in line lives without a question where the server cannot count listeners
-- ARGV[9]  last     text   the last token that the owner gave out
-- ARGV[10] spare    count  how many tokens more the register is raised by
--
-- Returns 1 when the owner holds `leave` times now, and with none left the lock is free
-- or another process has it.
-- Returns a string when the heir has the lock now: its fencing token.
-- Returns 2 when the lock is free, and the processes in line are to ask a little later.
-- Returns 3 when the lock is free, and clients may listen that do not stand in line. Only an owner of a client that
-- keeps locks gets this answer (include_linger).
-- Returns -2 when the owner holds nothing: it was lost, or an earlier copy of
-- this call freed it. Its place in line, if it has one, is given up.
-- Returns -4 when the key holds something else; nothing was done. A hash with no field but that of the
-- owner is the owner's, whatever the field says.
--
-- The first living process in line becomes the holder, with its offer for a lease. A
-- message to that process is the reason to ask, and the answer tells it that it holds
-- the lock. So a message that is lost or forged changes nothing, and no message
-- needs to be taken back. The heir's place is behind the others.
--
-- Listeners that never stand in line, as Redisson's, and callers of TryLock get only a
-- lock that is free. So a lock that is handed off is freed now and then, with a
-- message to all: after 4 grants when there are such listeners; after 16 when that cannot be known; after 4 and
-- a second when a caller has marked the line; otherwise after 640 and ten seconds, for Redisson's tryLock,
-- which leaves no mark; and never before each process in line
-- had a grant. All clients that know of the line
-- listen at `ours` too. The script counts them there, to tell them from the others, and publishes "aside"
-- there first: it asks them to wait a little, as they would always be the faster ones.
--
-- Safe to repeat, and it never touches another owner's field.
local lock, register = KEYS[1], KEYS[2]
local owner, publish, counts, leave = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4] or '0'
local heir, offer, again, keep = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local last, spare = ARGV[9], ARGV[10]

-- Mostly nobody waits, and so the hash has the owner's field alone; or the first in line is to have the
-- lock. To make all the functions, and to look at all the rules, takes longer than what is done then.
if leave == '0' and not heir then
  if redis.pcall('HLEN', lock) == 1 and redis.pcall('HDEL', lock, owner) == 1 then
    local heard = redis.pcall(publish, everybody(lock), '0') -- a hint: its refusal must not undo a release
    return keeps(owner) and not (counts and heard == 0) and 3 or 1
  end
  local answer = counts and handed(lock, owner, redis.pcall('HMGET', lock, owner, 'leasehold_line'), publish)
  if answer then return answer end
end
local next = heir and {owner = heir, offer = offer, again = tonumber(again), keep = tonumber(keep)}
return later().given(lock, register, nil, owner, leave, publish, counts, last, spare, next)
