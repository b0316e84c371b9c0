-- rw_force: ends all reading and writing.
-- include: rw
--
-- KEYS[1] lock     hash  mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] never    string  never there (include_rw)
-- ARGV[1] beside   text  what the keys of read leases begin with
-- ARGV[2] channel  text  where waiters listen
-- ARGV[3] publish  text  the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when an owner held it, 0 when none did.
-- Returns -3 when some fifty readers were removed, and there are more: ask again.
-- Returns -4 when the key holds something else; nothing was done.
local lock, never = KEYS[1], KEYS[2]
local beside, channel, publish = ARGV[1], ARGV[2], ARGV[3]

local mode, answer = side(lock)
if mode == nil then return answer end
redis.call('HDEL', lock, '') -- no such field: a replica, whose data may be old, refuses it
if not mode then return 0 end
local fields, cursor, stopped = {}, '0', false
repeat
  local page = redis.call('HSCAN', lock, cursor, 'COUNT', 50)
  cursor = page[1]
  stopped = readers(lock, beside, page[2], function(owner, count)
    fields[#fields + 1] = owner
    unlease(beside, owner, 1, count)
    return #fields == 50
  end)
until stopped or cursor == '0'
if stopped and not bury(lock, fields) then return -3 end
redis.call('DEL', lock)
redis.pcall(publish, channel, '1')
return 1
