-- rw_force: ends all reading and writing, whoever it is.
--
-- KEYS[1] lock     hash  mode, owner -> read holds, owner:write -> write holds
-- KEYS[2] never    string  never there (include_rw)
-- ARGV[1] beside   text  what the keys of reading leases begin with
-- ARGV[2] channel  text  where waiters listen
-- ARGV[3] publish  text  the command that reaches them: PUBLISH or SPUBLISH
--
-- Returns 1 when anybody held it, 0 when nobody did.
-- Returns -4 when the key holds something else; nothing was done.
local lock, never = KEYS[1], KEYS[2]
local beside, channel, publish = ARGV[1], ARGV[2], ARGV[3]

local mode, answer = side(lock)
if mode == nil then return answer end
if not mode then return 0 end
readers(lock, beside, function(owner, count)
  for n = 1, count do redis.call('DEL', timeout(beside, owner, n)) end
end)
redis.call('DEL', lock)
redis.pcall(publish, channel, '1')
return 1
