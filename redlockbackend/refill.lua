-- Puts a lock that a majority has just proved back on this node, if the node has
-- none of that name.
--
-- KEYS[1]  lock key
-- KEYS[2]  the bucket's clock: the largest number accepted in it
-- KEYS[3]  the owner's tombstone
-- ARGV[1]  owner
-- ARGV[2]  try
-- ARGV[3]  number of the lock
-- ARGV[4]  what is left of it, in milliseconds
-- ARGV[5]  its TTL in milliseconds
-- ARGV[6]  metadata
-- reply    1 this try's lock is here, 0 it is not
--
-- Atomic, so that it never overwrites another's lock, and never brings back one
-- whose release has left its tombstone. Raising the clock is harmless, and helps
-- a node that lost its data to refuse older numbers.
if tonumber(redis.call('GET', KEYS[3]) or -1) >= tonumber(ARGV[2]) then
  return 0
end
local me = ARGV[1] .. '.' .. ARGV[2]
local value = redis.call('GET', KEYS[1])
if value then
  return string.match(value, '^dl1 (%S+) ') == me and 1 or 0
end
local time = redis.call('TIME')
local since = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local record = {'dl1', me, ARGV[3], since, ARGV[5], ARGV[6]}
redis.call('SET', KEYS[1], table.concat(record, ' '), 'PX', ARGV[4])
if tonumber(redis.call('GET', KEYS[2]) or 0) < tonumber(ARGV[3]) then
  redis.call('SET', KEYS[2], ARGV[3])
end
return 1
