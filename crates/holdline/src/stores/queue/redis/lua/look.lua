-- The time, the line as it is stored, lapsed places included, and its evictions. KEYS[1]: the line.
return {redis.call('TIME'), redis.call('GET', KEYS[1]), redis.call('HGETALL', KEYS[1] .. ':p'),
  redis.pcall('GET', KEYS[1] .. ':v')}
