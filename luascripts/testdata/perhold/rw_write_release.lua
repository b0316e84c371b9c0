local function is_owner(field)
  return string.find(field, '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+$') ~= nil
end

local function timeout(beside, owner, n)
  return beside .. ':' .. owner .. ':rwlock_timeout:' .. n
end

local function lives(lock, beside, owner, count)
  local most = 0
  for n = count, math.max(count - 255, 1), -1 do
    local left = redis.call('PTTL', timeout(beside, owner, n))
    if left == -1 then left = math.max(redis.call('PTTL', lock), 1000) end
    most = math.max(most, left)
  end
  return most
end

local function unlease(beside, owner, from, to)
  for n = to, math.max(from, to - 9999), -1 do redis.pcall('DEL', timeout(beside, owner, n)) end
end

local function readers(lock, beside, part, f)
  for i = #part - 1, 1, -2 do
    local owner, count = part[i], tonumber(part[i + 1])
    if owner ~= 'mode' and count and string.sub(owner, -6) ~= ':write' then
      if f(owner, count, lives(lock, beside, owner, count)) then return true end
    end
  end
  return false
end

local function survey(lock, beside, except, enough)
  local most, seen, dead, cursor, stopped = 0, 0, {}, '0', false
  repeat
    local page = redis.call('HSCAN', lock, cursor, 'COUNT', 20)
    cursor = page[1]
    stopped = readers(lock, beside, page[2], function(owner, _, left)
      if seen == 50 then return true end
      if owner ~= except then
        seen = seen + 1
        most = math.max(most, left)
        if left == 0 then dead[#dead + 1] = owner end
      end
      return most >= enough
    end)
  until stopped or cursor == '0'
  return most, not stopped, dead
end

local function bury(lock, dead)
  if #dead > 0 then redis.call('HDEL', lock, unpack(dead)) end
  return redis.call('HLEN', lock) == 1
end

local function prune(lock, beside)
  if redis.call('HLEN', lock) <= 16 then return end
  local dead, seen = {}, 0
  readers(lock, beside, redis.call('HSCAN', lock, redis.call('TIME')[2], 'COUNT', 10)[2], function(owner, _, left)
    if left == 0 then dead[#dead + 1] = owner end
    seen = seen + 1
    return seen == 50
  end)
  bury(lock, dead)
end

local function side(lock)
  local mode = redis.pcall('HGET', lock, 'mode')
  if type(mode) == 'table' then
    if string.find(mode.err, 'WRONGTYPE', 1, true) then return nil, -4 end
    return nil, mode
  end
  if not mode and redis.call('EXISTS', lock) == 0 then return false end
  if mode ~= 'read' and mode ~= 'write' or redis.call('HLEN', lock) < 2 then return nil, -4 end
  local some = redis.call('HSCAN', lock, 0, 'COUNT', 8)[2]
  for i = 1, math.min(#some, 32), 2 do
    local field = some[i]
    if field ~= 'mode' and not (is_owner((string.gsub(field, ':write$', ''))) and tonumber(some[i + 1])) then return nil, -4 end
  end
  return mode
end

local function one_passed() return 1 end

local function turned(turn)
  local text = redis.pcall('GET', turn)
  local left = type(text) == 'string' and redis.call('PTTL', turn) or 0
  if left <= 0 then return '', 0, 0, 0 end
  local owner, since, start = string.match(text, '^(.*) (%d+) (%d+)$')
  return owner or '', tonumber(since or 0), tonumber(start or 0), left
end

local function turns(turn, owner, since, start, left)
  redis.pcall('SET', turn, string.format('%s %.0f %.0f', owner, since, start), 'PX', left)
end

local function wished(wish)
  local text = redis.pcall('GET', wish)
  if type(text) ~= 'string' or redis.call('PTTL', wish) <= 0 then return nil end
  local owner, since = string.match(text, '^(.*) (%d+)$')
  return owner, tonumber(since)
end
local lock, wish, turn, never = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, leave, beside = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local channel, publish = ARGV[4], ARGV[5]

local function tell() redis.pcall(publish, channel, '1') end

if leave == 0 and wished(wish) == owner then
  redis.pcall('DEL', wish)
  tell()
end
local mode, answer = side(lock)
if mode == nil then return answer end
local count = mode == 'write' and redis.call('HGET', lock, owner .. ':write')
redis.call('HDEL', lock, '')
if not count then return -2 end

if leave > 0 then
  redis.call('HSET', lock, owner .. ':write', leave)
  return 1
end
local most = redis.call('HLEN', lock) > 2 and survey(lock, beside, nil, math.huge) or 0
if most > 0 then
  redis.call('PEXPIRE', lock, most)
  redis.call('HSET', lock, 'mode', 'read')
  redis.call('HDEL', lock, owner .. ':write')
else
  redis.call('DEL', lock)
end
local reader, came = turned(turn)
if reader ~= '' then
  local time = redis.call('TIME')
  turns(turn, reader, came, time[1] * 1000 + math.floor(time[2] / 1000), 100)
end
tell()
return 1
