-- The whole line as it is kept, lapsed places and all, and the time. KEYS: line
return {redis.call('TIME'), redis.call('HGETALL', KEYS[1])}
