-- Extends a lock that is still its owner's.
--
-- KEYS[1]  lock key
-- ARGV[1]  owner
-- ARGV[2]  TTL in milliseconds
-- reply    1 extended, 0 not this owner's (gone, another's, or foreign data)
--
-- Atomic, so that nobody can take the lock between the comparison and the new
-- expiry. Never creates a key and never shortens its life, but always writes, so
-- that a WAIT behind it on the same connection speaks of it. One key only: that
-- works while its slot moves between nodes of a Cluster.
local owner = string.match(redis.call('GET', KEYS[1]) or '', '^dl1 (%S+) ')
if owner ~= ARGV[1] then
  return 0
end
local ttl, left = tonumber(ARGV[2]), redis.call('PTTL', KEYS[1])
return redis.call('PEXPIRE', KEYS[1], math.max(ttl, left))
