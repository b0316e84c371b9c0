-- include_crew: a crew, whose members have leases. It has no keys of its own.
--
-- A crew is one zset, member -> score. The score of a living member is the server's time in ms until which it counts as
-- alive; when that has passed, the member is lost. Other scores are marks: 9e15 + 1 is done, 1 was lost by its own word, and
-- 0 never began, or was dismissed. A member that is over stays, so that a late copy of a command does not bring it
-- back. `round` -> minus the time in µs at which the crew began: it tells this crew from an earlier one of that name.

-- member_of returns the score of a member, or nil, and whether the member is alive. If the key holds something else, or a command is denied, it
-- returns nil, false, and an answer for the caller.
local function member_of(members, owner, now)
  local score = redis.pcall('ZSCORE', members, owner)
  if type(score) == 'table' then
    return nil, false, string.find(score.err, 'WRONGTYPE', 1, true) and -4 or score
  end
  score = tonumber(score)
  return score, score ~= nil and score > now and score < 9e15 -- mutant: border 2: no score is 9e15
end

-- is_mark reports whether a score is a mark, and no time.
local function is_mark(score)
  return score < 2 or score >= 9e15 -- mutant: border 2: no score is 9e15
end

-- put sets the score of a member, which was `before`, or nil if it had none. If that is denied, it changes nothing, and returns an error.
local function put(members, owner, before, score, stay)
  local reply = redis.pcall('ZADD', members, string.format('%.0f', score), owner)
  if type(reply) == 'table' then return reply end
  local long = redis.pcall('PTTL', members)
  local denied = long
  if type(long) == 'number' then denied = long < stay / 2 and redis.pcall('PEXPIRE', members, stay) end
  if type(denied) == 'table' then
    if before then
      redis.call('ZADD', members, string.format('%.0f', before), owner)
    else
      redis.call('ZREM', members, owner)
    end
    return denied
  end
end

-- at_work returns how many members are alive.
local function at_work(members, now)
  return redis.call('ZCOUNT', members, '(' .. string.format('%.0f', now), '(9000000000000000')
end
