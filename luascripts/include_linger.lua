-- include_linger: notifies a client that keeps a lock for its next caller. It has no keys of its own.
-- include: channels
--
-- With lock.WithLinger, a client keeps a lock after the last release, until another client wants
-- it. Its owner strings say so: three digits follow the number, which has 18 or 19 digits. The first
-- is 1 if the client is notified with PUBLISH, and 2 with SPUBLISH. The other two say for how long a
-- TryLock of another client retries, in units of 10 ms.

-- notify_keeper tells the holder's client that owner, of another client, wants the lock, if the
-- holder's client keeps locks. The message is "wait" if owner waits for the lock (waits is true), and
-- "try" if not. It returns for how many ms a TryLock retries; 0 if the holder's client keeps no locks
-- or is the owner's own. Package keys builds the same channel name.
local function notify_keeper(lock, holder, owner, waits)
  if #holder < 58 then return 0 end -- mutant: never, border: speed
  local client, number, command, wait = string.match(holder, '^([%x%-]+):0*([1-9]%d*)([12])(%d%d)$')
  if not client or #number < 18 or string.sub(client, 15, 15) ~= '7' or client == string.sub(owner, 1, #client) then return 0 end
  -- If publishing is denied, the caller waits as for any other holder.
  redis.pcall(command == '1' and 'PUBLISH' or 'SPUBLISH', queue_channel(lock) .. ':' .. client, waits and 'wait' or 'try')
  return wait * 10
end
