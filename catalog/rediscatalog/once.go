package rediscatalog

import (
	"strconv"

	"github.com/redis/go-redis/v9"
)

// answeringOnce returns a script from a body that returns two values: the reply, and
// whether it changed anything. The script stores the reply to a change for one minute
// under a key that is unique to the call. If the reply is lost and the call is
// repeated, the script returns the stored reply. Without it, the repeated call would
// report the state after its own change as the state before it.
//
// The body has the given number of keys, and the key of the stored reply follows them.
// If a call omits that key, the script stores no reply.
func answeringOnce(keys int, body string) *redis.Script {
	return redis.NewScript(`
local key = KEYS[` + strconv.Itoa(keys+1) + `]
local before = key and redis.call('GET', key)
if before then return before end
local function run()` + body + `end
local answer, changed = run()
if key and changed then redis.call('SET', key, answer, 'PX', 60000) end
return answer
`)
}
