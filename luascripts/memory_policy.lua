-- memory_policy: reads what the server does if its memory is full.
--
-- Returns the text of INFO memory. It is empty if INFO is denied, or if the server cannot tell whether it is (before Redis
-- 7.0), because a denied command would leave an entry in the ACL log.
--
-- Changes nothing.
if redis.acl_check_cmd and redis.acl_check_cmd('info', 'memory') then
  return redis.call('INFO', 'memory')
end
return ''
