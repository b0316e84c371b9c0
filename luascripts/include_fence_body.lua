-- include_fence_body: stands between the guard and a user's script, and restores the KEYS and ARGV of that.
-- include: fence
-- KEYS    those of the script, and at the end the register
-- ARGV    those of the script, and at the end the token and keep, in ms
-- ARGV    what the script has, and at the end the token and keep, in ms
--
-- The script runs only when the token may write; see include_fence for the rest.
do
  local keep, token, register = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
  local refusal = stale(register, token)
  if refusal then return refusal end
  raise(register, token, keep)
end

