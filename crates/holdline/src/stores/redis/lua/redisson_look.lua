-- The fields of a lock that is a hash, its time to live in ms, and the note at ARGV[1].
return {redis.call('HGETALL', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', ARGV[1])}
