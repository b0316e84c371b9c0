-- token_raise: a holder makes the tokens of all later holders larger than one that it names.
--
-- KEYS[1] lock      hash    owner -> hold count
-- KEYS[2] counter   string  the highest fencing token
-- ARGV[1] holder    text    the owner's field in the hash, which ends in ":write" if the owner writes
-- ARGV[2] token     count   the least that the register must be
--
-- Returns 1 when the register is at the token or above.
-- Returns -2: the holder does not hold the lock; nothing was done.
-- Returns -4: the key or the register holds something else; nothing was done.
--
-- Safe to repeat, and in any order: the register never goes down. A copy that arrives
-- when another owner has the lock does nothing: that owner's token may be the smaller one.

local lock, counter = KEYS[1], KEYS[2]
local holder, token = ARGV[1], tonumber(ARGV[2])

local held = redis.pcall('HEXISTS', lock, holder)
if type(held) == 'table' then
  if string.find(held.err, 'WRONGTYPE', 1, true) then return -4 end
  return held
end
redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
if held == 0 then return -2 end
local text = redis.call('GET', counter)
if text and not string.find(text, '^%d+$') then return -4 end
local latest = tonumber(text)
if not latest or latest < token then redis.call('SET', counter, string.format('%.0f', token)) end
return 1
