-- include_fence_body: stands between the guard and a script of the user's own, whose KEYS and ARGV it puts right.
-- include: fence
--
-- KEYS    what the script has, and at the end the register
-- ARGV    what the script has, and at the end the token and keep, in ms
--
-- The script runs only when the token may write; see include_fence for the rest.
do
  local keep, token, register = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
  local refusal = stale(register, token)
  if refusal then return refusal end
  raise(register, token, keep)
end

