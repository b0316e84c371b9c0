-- client_keep: extends the registry entry of a client (heartbeat), and writes the entry if there is none.
--
-- KEYS[1] client  hash  the entry of the client
-- ARGV[1] ttl      ms    how long the entry lives after this call
-- ARGV[2] host     text  the host of the client
-- ARGV[3] pid      text  its process id
-- ARGV[4] name     text  the name of the application
-- ARGV[5] label    text  a label chosen by the application; may be empty
-- ARGV[6] version  text  the version of the library
-- ARGV[7] started  text  when the client was created
--
-- Returns 1 if the entry existed; it now lives for another ttl.
-- Returns 0 if the script wrote the entry.
-- Returns an error if the key has the wrong type, or a command is denied; nothing was changed.
--
-- Safe to repeat: it writes the same entry.
local client, ttl = KEYS[1], ARGV[1]
local host, pid, name, label = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local version, started = ARGV[6], ARGV[7]

local known = redis.pcall('HEXISTS', client, 'host')
if type(known) == 'table' then return known end
if known == 0 then
  redis.call('HSET', client, 'host', host, 'pid', pid, 'name', name, 'label', label, 'version', version, 'started', started)
end
local expiry = redis.pcall('PEXPIRE', client, ttl)
if type(expiry) == 'table' then
  if known == 0 then redis.call('DEL', client) end -- without a TTL the entry would stay permanently
  return expiry
end
return known
