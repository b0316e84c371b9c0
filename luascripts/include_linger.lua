-- include_linger: tells a client that keeps a lock for its next owner that another client wants it. It has no keys of its own.
-- include: channels
--
-- A client that keeps a lock (lock.WithLinger) shows it in its owner strings. Three digits follow the
-- number, which has 18 or 19 digits: how a message reaches the client, 1 by PUBLISH and 2 by SPUBLISH; and for how
-- long a caller that makes one attempt waits for the client, in 10 ms. Package keys makes the same channel.

-- wanted tells the client of the lock's holder that an owner of another client asks for the lock, if the
-- holder's client keeps locks: "wait" if that owner waits, and "try" if not. It returns the ms for which an owner
-- that does not wait asks again; 0 if the client keeps no locks, or is the same.
local function wanted(lock, holder, owner, waits)
  if #holder < 58 then return 0 end -- mutant: never, border: speed
  local client, number, how, time = string.match(holder, '^([%x%-]+):0*([1-9]%d*)([12])(%d%d)$')
  if not client or #number < 18 or string.sub(client, 15, 15) ~= '7' or client == string.sub(owner, 1, #client) then return 0 end
  -- Its refusal changes nothing for the caller.
  redis.pcall(how == '1' and 'PUBLISH' or 'SPUBLISH', knowing(lock) .. ':' .. client, waits and 'wait' or 'try')
  return time * 10
end
