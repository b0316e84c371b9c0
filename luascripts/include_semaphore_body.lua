-- include_semaphore_body: stands before a user's script, which runs only while permits are held, and restores the KEYS and ARGV of that.
--
-- KEYS    those of the script, and at the end the zset of the permits' leases
-- ARGV    those of the script, and at the end the ids of the permits, and how many there are
do
  local leases, time, over = table.remove(KEYS), redis.call('TIME'), false
  for _ = 1, tonumber(table.remove(ARGV)) do
    local score = redis.call('ZSCORE', leases, table.remove(ARGV))
    over = over or not score or tonumber(score) <= time[1] * 1000 + math.floor(time[2] / 1000)
  end
  if over then return redis.error_reply('NOPERMIT the lease is over') end
end

