-- The value of a lock that is a string, its time to live in ms, and the evictions at ARGV[1].
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.pcall('GET', ARGV[1])}
