-- include_fence_body: runs before a user's script, checks the fencing token, and restores the KEYS and ARGV of that script.
-- include: fence
-- KEYS    those of the user's script, then the key of the highest token
-- ARGV    those of the user's script, then the token and keep, in ms
--
-- The user's script runs only if the token may write; otherwise the reply is the error of stale (include_fence).
do
  local keep, token, highest_key = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
  local refusal = stale(highest_key, token)
  if refusal then return refusal end
  raise(highest_key, token, keep)
end

