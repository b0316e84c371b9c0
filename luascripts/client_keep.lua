-- client_keep: a client says who it is, and that it lives.
--
-- KEYS[1] client  hash  what a client tells of itself
-- ARGV[1] ttl      ms    how long the entry lives if nothing is heard of the client
-- ARGV[2] host     text  the machine that it runs on
-- ARGV[3] pid      text  its process there
-- ARGV[4] name     text  the application
-- ARGV[5] label    text  what the application says besides; can be empty
-- ARGV[6] version  text  of the library
-- ARGV[7] started  text  when the client was made
--
-- Returns 1 when the entry was there, and now lives for another ttl.
-- Returns 0 when it was not there, and was written.
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
  if known == 0 then redis.call('DEL', client) end -- it would never end
  return lives
end
return known
