-- leader_post: publishes the value of a leader, or withdraws it.
--
-- KEYS[1] store    hash  token, value, number, by, since (server's ms); and over if the value was withdrawn
-- ARGV[1] token    count the fencing token of the leader's hold; 0 if it has none
-- ARGV[2] value    text  the value
-- ARGV[3] ttl      ms    how long the value is stored
-- ARGV[4] withdraw count 1 withdraws the value
-- ARGV[5] channel  text  the channel of the observers
-- ARGV[6] publish  text  the command that notifies them: PUBLISH or SPUBLISH
-- ARGV[7] number   count larger than those of the leader's earlier calls
-- ARGV[8] leader   text  identifies the leader if it has no token
--
-- Returns 1 if the value is published or withdrawn. Also returns 1 if this leader has made a newer call; then nothing was
-- changed.
-- Returns 0 if a leader with a higher token has published a value, or this leader has withdrawn its value in a newer call;
-- nothing was changed.
-- Returns 0 if a leader without a token would withdraw the value of another leader without a token; nothing was changed.
-- Returns -4: the key has the wrong type; nothing was changed.
--
-- Safe to repeat: token and number stay after a withdrawal, so a delayed duplicate restores neither a withdrawn nor an older
-- value. A leader can lead again with the same token: its hold may be a reentry of an outer one.
local store = KEYS[1]
local token, value, ttl, withdraw, channel, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5], ARGV[6]
local number, leader = ARGV[7], ARGV[8]

local old = redis.pcall('HMGET', store, 'token', 'value', 'over', 'number', 'by')
if old.err then
  if string.find(old.err, 'WRONGTYPE', 1, true) then return -4 end
  return old
end
redis.call('HDEL', store, '') -- deletes nothing; a replica rejects it, and then full memory does not stop the rest
local old_token = tonumber(old[1] or '-1')
if old_token > tonumber(token) then return 0 end
local own = old_token == tonumber(token)
if own and old_token == 0 and old[5] ~= leader then -- the order of the two leaders is unknown
  if withdraw then return 0 end
  own = false
end
-- mutant: operand 9: a reply has true as 1
if own and tonumber(old[4] or '0') > tonumber(number) then return (withdraw or not old[3]) and 1 or 0 end
redis.call('PEXPIRE', store, ttl) -- if it is denied, the script fails before it has changed anything
if withdraw then
  redis.call('HSET', store, 'token', token, 'over', '1', 'number', number, 'by', leader)
  redis.call('HDEL', store, 'value', 'since')
else
  if not own or not old[2] then
    local time = redis.call('TIME')
    redis.call('HSET', store, 'since', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
    redis.call('HDEL', store, 'over')
  end
  redis.call('HSET', store, 'token', token, 'value', value, 'number', number, 'by', leader)
end
redis.call('PEXPIRE', store, ttl)
if withdraw or not own or old[2] ~= value then redis.pcall(publish, channel, '') end
return 1
