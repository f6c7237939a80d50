-- Removes a lock from this node if it is still of this owner's try or of an
-- earlier one, and tells who waits.
--
-- KEYS[1]  lock key
-- KEYS[2]  the owner's tombstone
-- ARGV[1]  owner
-- ARGV[2]  try
-- ARGV[3]  1: a request of these tries may still be on its way: leave a tombstone
-- ARGV[4]  TTL of the tombstone in milliseconds
-- ARGV[5]  the bucket's hint channel
-- ARGV[6]  name of the lock
-- reply    1 removed, 0 not this owner's (gone, another's, or foreign data)
--
-- Atomic, so that a lock which passes to another owner between the comparison and
-- the removal is not removed. A tombstone for later tries is left alone. A refused
-- publication costs waiters time only, so it must not undo the rest.
local try = tonumber(ARGV[2])
if ARGV[3] == '1' and tonumber(redis.call('GET', KEYS[2]) or -1) <= try then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
end
local owner, t = string.match(redis.call('GET', KEYS[1]) or '', '^dl1 (%S+)%.(%d+) ')
if owner ~= ARGV[1] or tonumber(t) > try then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[5], ARGV[1] .. '.' .. ARGV[2] .. ' ' .. ARGV[6])
return 1
