-- memory_policy: what the server does when its memory is full.
--
-- Returns the text of INFO memory, or an empty text where the caller may not run that command,
-- or the server cannot tell whether it may (before Redis 7.0): a denied command would
-- leave an entry in the ACL log. Changes nothing.
if redis.acl_check_cmd and redis.acl_check_cmd('info', 'memory') then
  return redis.call('INFO', 'memory')
end
return ''
