-- server_info: reads which server has a lock, and its role.
--
-- KEYS[1] lock  hash  the key of the lock, which only selects the node of a cluster
--
-- Returns the text of INFO server and INFO replication.
--
-- Changes nothing.
local lock = KEYS[1]

return redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
