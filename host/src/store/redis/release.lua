-- Releases the lease that a claim holds, keeps what the plugin handed over, and tells the stand-bys.
--
-- KEYS: lease, holder, handoff, history    ARGV: claim, channel, role, 'keep' | 'clear' | 'put', handoff
-- Returns 1, or 0 where the claim does not hold the lease: then nothing was changed.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local last = redis.call('HMGET', KEYS[2], 'term', 'instance')
local term = last[1] or '0'
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[2], 'released', '1')
if ARGV[4] == 'clear' then
  redis.call('DEL', KEYS[3])
elseif ARGV[4] == 'put' then
  redis.call('SET', KEYS[3], ARGV[5])
end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'event', 'released', 'term', term, 'instance', last[2] or '')
-- Without a right to the channel, all goes on, only slower.
redis.pcall('PUBLISH', ARGV[2], 'released ' .. ARGV[3] .. ' ' .. term)
return 1
