-- Deletes a register if it has the expected version.
-- KEYS: the register, the names of all registers.
-- ARGV: the version, the name, the channel on which changes are told.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return 0 end
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
-- The register comes last: where this fails, it is as it was.
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[3], '- ' .. ARGV[2])
return 1
