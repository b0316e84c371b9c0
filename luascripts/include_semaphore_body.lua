-- include_semaphore_body: runs before a user's script, checks that the owner still holds its permits, and restores the KEYS and ARGV of that script.
--
-- KEYS    those of the user's script, then the zset with the leases of the permits
-- ARGV    those of the user's script, then the ids of the permits, then their number
--
-- Returns an error NOPERMIT if a permit is gone or its lease has expired. The user's script then does not run.
do
  local leases, time, expired = table.remove(KEYS), redis.call('TIME'), false
  for _ = 1, tonumber(table.remove(ARGV)) do
    local score = redis.call('ZSCORE', leases, table.remove(ARGV))
    expired = expired or not score or tonumber(score) <= time[1] * 1000 + math.floor(time[2] / 1000)
  end
  if expired then return redis.error_reply('NOPERMIT the lease is over') end
end

