-- The value of a lock that is a string, and its time to live in ms.
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}
