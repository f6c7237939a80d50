-- Removes a lock if it is still its owner's, and tells who waits.
--
-- KEYS[1]  lock key
-- KEYS[2]  the owner's tombstone
-- ARGV[1]  owner
-- ARGV[2]  1: a request of this owner may still be on its way: leave a tombstone
-- ARGV[3]  TTL of the tombstone in milliseconds
-- ARGV[4]  PUBLISH, or SPUBLISH in a Cluster
-- ARGV[5]  the bucket's hint channel
-- ARGV[6]  name of the lock, the message
-- reply    1 removed, 0 not this owner's (gone, another's, or foreign data)
--
-- Atomic, so that a lock which passes to another owner between the comparison
-- and the removal is not removed. A refused publication costs waiters time only,
-- so it must not undo the rest.
if ARGV[2] == '1' then
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
end
local owner = string.match(redis.call('GET', KEYS[1]) or '', '^dl1 (%S+) ')
if owner ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[4], ARGV[5], ARGV[6])
return 1
