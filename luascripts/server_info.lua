-- server_info: which server has a lock, and in which role.
--
-- KEYS[1] lock  hash  the lock's key; it only tells a cluster which server to ask
--
-- Returns the text of INFO server and INFO replication. Changes nothing.
local lock = KEYS[1]

return redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
