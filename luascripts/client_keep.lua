-- client_keep: a client gives a sign of life, and writes its entry if there is none.
--
-- KEYS[1] client  hash  the entry of the client
-- ARGV[1] ttl      ms    the life of the entry after this call
-- ARGV[2] host     text  the machine of the client
-- ARGV[3] pid      text  the process of the client
-- ARGV[4] name     text  the name of the application
-- ARGV[5] label    text  a label that the application chooses; can be empty
-- ARGV[6] version  text  the version of the library
-- ARGV[7] started  text  when the client was made
--
-- Returns 1 when the entry was there, and now lives for another ttl.
-- Returns 0 when the entry was not there, and the script wrote it.
-- An error changes nothing: the key holds something else, or a right is missing.
local client, ttl = KEYS[1], ARGV[1]
local host, pid, name, label = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local version, started = ARGV[6], ARGV[7]

local known = redis.pcall('HEXISTS', client, 'host')
if type(known) == 'table' then return known end
if known == 0 then
  redis.call('HSET', client, 'host', host, 'pid', pid, 'name', name, 'label', label, 'version', version, 'started', started)
end
local lives = redis.pcall('PEXPIRE', client, ttl)
if type(lives) == 'table' then
  if known == 0 then redis.call('DEL', client) end -- without a TTL the entry would stay for good
  return lives
end
return known
