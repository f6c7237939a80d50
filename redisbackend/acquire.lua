-- Takes a lock if it is free.
--
-- KEYS[1]  lock key
-- KEYS[2]  the bucket's clock: the last number given in it
-- KEYS[3]  the owner's tombstone
-- ARGV[1]  owner
-- ARGV[2]  TTL in milliseconds
-- ARGV[3]  1: an earlier copy of this request may still be on its way
-- ARGV[4]  metadata, kept for people
-- reply    granted, number   taken, or held by this owner already
--          held, PTTL        another's; PTTL in ms, negative if it has no expiry
--          dead              this owner was given up
--          conflict, key     the key holds data that is not ours
--
-- Atomic, so that a lock is given once and its number is larger than that of
-- every earlier holder. The same owner is granted again, with its full TTL: that
-- is a request whose reply was lost. A number is hybrid: the server's time in
-- units of 10 µs, or the last one + 1 if that is more. A counter alone would
-- start again after a loss of data. An owner that is told held must not come in
-- later through an earlier copy, so that leaves a tombstone. Nothing foreign is
-- overwritten, and no expiry is shortened.
if redis.call('EXISTS', KEYS[3]) == 1 then
  return {'dead'}
end

local value = redis.call('GET', KEYS[1])
if value then
  local owner, number = string.match(value, '^dl1 (%S+) (%d+) ')
  if not owner then
    return {'conflict', KEYS[1]}
  end
  local left = redis.call('PTTL', KEYS[1])
  if owner == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[2]), left))
    return {'granted', number}
  end
  if ARGV[3] == '1' then
    redis.call('SET', KEYS[3], '1', 'PX', ARGV[2])
  end
  return {'held', left}
end

local last = tonumber(redis.call('GET', KEYS[2]) or 0)
if not last or last < 0 or last >= 2 ^ 53 then
  return {'conflict', KEYS[2]}
end
local time = redis.call('TIME')
local sec, usec = tonumber(time[1]), tonumber(time[2])
local number = string.format('%.0f', math.max(last + 1, sec * 100000 + math.floor(usec / 10)))
local since = string.format('%.0f', sec * 1000 + math.floor(usec / 1000))
redis.call('SET', KEYS[2], number)
redis.call('SET', KEYS[1], table.concat({'dl1', ARGV[1], number, since, ARGV[2], ARGV[4]}, ' '), 'PX', ARGV[2])
return {'granted', number}
