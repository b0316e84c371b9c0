-- leader_post: a leader says something of itself, or takes it back.
--
-- KEYS[1] board   hash  token, value, number, by, since (ms, by the server's clock), and over when it was taken back
-- ARGV[1] token   count the fencing token of its hold; 0 if it has none
-- ARGV[2] value   text  what it says
-- ARGV[3] stay    ms    how long that is said
-- ARGV[4] over    count 1 takes it back
-- ARGV[5] channel text  where observers listen
-- ARGV[6] publish text  the command that reaches them: PUBLISH or SPUBLISH
-- ARGV[7] number  count larger than those of what this leader said before
-- ARGV[8] by      text  the leader, where it has no token
--
-- Returns 1 when it stands there, or was taken back; also when this leader has said something newer: then nothing was done.
-- Returns 0 when a leader with a larger token has said something, or this one has taken back what it said: nothing was done.
-- Returns 0 when a leader without a token would take back what another one without a token has said: nothing was done.
-- Returns -4: the key holds something else; nothing was done.
--
-- Safe to repeat. A late copy does not bring back what was taken back, which leaves the token, or what was said before.
local board = KEYS[1]
local token, value, stay, over, channel, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5], ARGV[6]
local number, by = ARGV[7], ARGV[8]

local was = redis.pcall('HMGET', board, 'token', 'value', 'over', 'number', 'by')
if was.err then
  if string.find(was.err, 'WRONGTYPE', 1, true) then return -4 end
  return was
end
redis.call('HDEL', board, '') -- no such field: a first write that memory limits let through, and a replica refuses
local before = tonumber(was[1] or '-1')
if before > tonumber(token) then return 0 end
local mine = before == tonumber(token)
if mine and before == 0 and was[5] ~= by then -- nothing says which of the two is the later one
  if over then return 0 end
  mine = false
end
if mine and was[3] and before > 0 then return over and 1 or 0 end -- mutant: operand 7: a reply has true as 1
-- mutant: operand 9: a reply has true as 1
if mine and tonumber(was[4] or '0') > tonumber(number) then return (over or not was[3]) and 1 or 0 end
redis.call('PEXPIRE', board, stay) -- a denied command is an error before anything is said
if over then
  redis.call('HSET', board, 'token', token, 'over', '1', 'number', number, 'by', by)
  redis.call('HDEL', board, 'value', 'since')
else
  if not mine or not was[2] then
    local time = redis.call('TIME')
    redis.call('HSET', board, 'since', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
    redis.call('HDEL', board, 'over')
  end
  redis.call('HSET', board, 'token', token, 'value', value, 'number', number, 'by', by)
end
redis.call('PEXPIRE', board, stay)
if over or not mine or was[2] ~= value then redis.pcall(publish, channel, '') end
return 1
