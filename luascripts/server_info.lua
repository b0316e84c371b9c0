-- server_info: what the server that has a lock says of itself.
--
-- KEYS[1] lock  hash  any lock's; it only tells a cluster which server is meant
--
-- Returns the text of INFO server and INFO replication. Changes nothing.
local lock = KEYS[1]

redis.call('PTTL', lock) -- on a cluster, the answer must be that of the slot's owner
return redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
