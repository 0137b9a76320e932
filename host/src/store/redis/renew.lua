-- Renews the lease that a claim holds, for a full ttl from now: an absolute end, so that nothing adds up.
--
-- KEYS: lease, holder    ARGV: claim, ttl in ms    Returns 1, or 0 where the claim does not hold the lease.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local ends = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2])
redis.call('PEXPIREAT', KEYS[1], ends)
redis.call('HSET', KEYS[2], 'until', ends)
return 1
