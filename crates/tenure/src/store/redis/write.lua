-- Writes a register if it has the expected version.
-- KEYS: the register, the count that was given last, the names of all registers.
-- ARGV: the expected version ('' for none), the name, the value, '1' to stamp it,
-- the mark of the new version, the channel on which changes are told.
local kind = redis.call('TYPE', KEYS[1]).ok
local held = ''
if kind == 'hash' then held = redis.call('HGET', KEYS[1], 'version') or 'none' end
if kind ~= 'hash' and kind ~= 'none' then held = 'none' end
if held ~= ARGV[1] then return false end

-- Above the last count and above the register's own, and above the time, so that it
-- goes on growing where the counter is lost or an older copy of it comes back. No
-- version is given twice even where it falls: each has a mark drawn for it.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = string.match(redis.call('GET', KEYS[2]) or '', '^%d+$')
local own = string.match(held, '^(%d+)%-')
local count = math.max(now, tonumber(last or '0') + 1, tonumber(own or '0') + 1)
if count > 9007199254740000 then
    return redis.error_reply('COUNTER ' .. KEYS[2] .. ' is too high')
end
local digits = string.format('%016.0f', count)
local version = digits .. '-' .. ARGV[5]

-- The register comes last: where one of these fails, it is as it was.
redis.call('ZADD', KEYS[3], 0, ARGV[2])
redis.call('SET', KEYS[2], digits)
if ARGV[4] == '1' then
    local stamp = string.format('%.0f', now)
    redis.call('HSET', KEYS[1], 'version', version, 'value', ARGV[3], 'stamp', stamp)
else
    redis.call('HSET', KEYS[1], 'version', version, 'value', ARGV[3])
end
-- A hint, which may be lost: whether it can be given changes nothing.
redis.pcall('PUBLISH', ARGV[6], version .. ' ' .. ARGV[2])
return {version, time[1], time[2]}
