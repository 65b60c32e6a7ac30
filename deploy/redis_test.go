package deploy_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/internal/testenv"
)

// startRedis starts redis-server with a file of this folder, in which pairs of old
// and new text are replaced, and returns its address.
func startRedis(t *testing.T, file string, args []string, oldnew ...string) string {
	t.Helper()
	testenv.Need(t, "redis-server", "apt-get install redis-server")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(string(text), oldnew[i]) {
			t.Fatalf("%s lacks %q", file, oldnew[i])
		}
	}
	conf := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(conf, []byte(strings.NewReplacer(oldnew...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(testenv.FreePort(t))
	args = append([]string{conf, "--bind", "127.0.0.1", "--port", port}, args...)
	addr := net.JoinHostPort("127.0.0.1", port)
	testenv.StartChild(t, nil, "redis-server", args...)
	testenv.Eventually(t, time.Minute, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}, file+" starts a server")
	return addr
}

// redisUsers are the users of redis-users.acl with passwords by procfleet
// redis-users.
type redisUsers struct{ acl, passwords string }

// withPasswords creates the passwords of all users.
func withPasswords(t *testing.T) redisUsers {
	t.Helper()
	dir := t.TempDir()
	u := redisUsers{filepath.Join(dir, "users.acl"), filepath.Join(dir, "passwords")}
	u.make(t)
	return u
}

// make creates the missing passwords.
func (u redisUsers) make(t *testing.T) {
	t.Helper()
	args := []string{"redis-users", "--rights", "redis-users.acl", "--passwords", u.passwords, "--out", u.acl}
	if out, err := exec.Command(testenv.BuildBinary(t, "./cmd/procfleet"), args...).CombinedOutput(); err != nil {
		t.Fatalf("procfleet %q: %v\n%s", args, err, out)
	}
}

// password returns the password of a user.
func (u redisUsers) password(t *testing.T, user string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(u.passwords, user+".password"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func client(t *testing.T, addr, user, password string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, Username: user, Password: password})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestUsersSufficeForReplicasAndSentinel starts a master, a replica and a Sentinel
// with the files of this folder, and lets the Sentinel promote the replica.
func TestUsersSufficeForReplicasAndSentinel(t *testing.T) {
	t.Parallel()
	users := withPasswords(t)
	withUsers := []string{"--masteruser", "replica", "--masterauth", users.password(t, "replica")}
	start := func(more ...string) string {
		return startRedis(t, "redis.conf", append(more, withUsers...), "dir /data", "dir "+t.TempDir(), "# aclfile /etc/redis/users.acl", "aclfile "+users.acl)
	}
	master := start()
	replica := start("--replicaof", strings.Replace(master, ":", " ", 1))
	has := func(addr, part string) func() bool {
		c := client(t, addr, "worker", users.password(t, "worker"))
		return func() bool {
			info, err := c.Info(t.Context()).Result()
			return err == nil && strings.Contains(info, part)
		}
	}
	testenv.Eventually(t, time.Minute, has(master, "state=online"), "the replica is connected")
	if !has(master, "maxmemory_policy:noeviction")() {
		t.Error("redis.conf lets Redis evict tasks")
	}
	rejectsUnknownUsers(t, master, users)

	monitor := strings.Replace(master, ":", " ", 1)
	sentinel := startRedis(t, "redis-sentinel.conf", []string{"--sentinel"},
		"10.0.0.4 6379", monitor, "PASSWORD", users.password(t, "sentinel"))
	asked := client(t, sentinel, "", "")
	testenv.Eventually(t, time.Minute, func() bool {
		info, err := asked.Info(t.Context(), "sentinel").Result()
		return err == nil && strings.Contains(info, "status=ok,address="+master+",slaves=1")
	}, "Sentinel sees the master and its replica")
	testenv.Eventually(t, time.Minute, func() bool {
		return asked.Do(t.Context(), "SENTINEL", "FAILOVER", "fleet").Err() == nil
	}, "Sentinel begins a fail-over")
	testenv.Eventually(t, time.Minute, has(replica, "role:master"), "the replica becomes the master")
	testenv.Eventually(t, time.Minute, has(master, fmt.Sprintf("master_port:%s", replica[strings.LastIndexByte(replica, ':')+1:])), "the old master follows the new one")
}

// rejectsUnknownUsers checks that Redis rejects connections without a user, with a
// wrong password or with another user's password, and that the user for health
// checks may do nothing else.
func rejectsUnknownUsers(t *testing.T, addr string, users redisUsers) {
	t.Helper()
	for name, c := range map[string]*redis.Client{
		"nobody":                        client(t, addr, "", ""),
		"a worker with a guess":         client(t, addr, "worker", "guess"),
		"a worker as a dispatcher":      client(t, addr, "dispatcher", users.password(t, "worker")),
		"the default user":              client(t, addr, "default", users.password(t, "worker")),
		"the user that all had at once": client(t, addr, "procfleet", users.password(t, "worker")),
	} {
		if answer, err := c.Ping(t.Context()).Result(); err == nil {
			t.Errorf("%s: reply %s", name, answer)
		}
	}
	health := client(t, addr, "health", "none")
	if err := health.Ping(t.Context()).Err(); err != nil {
		t.Errorf("a health check: %v", err)
	}
	if answer, err := health.Info(t.Context()).Result(); err == nil {
		t.Errorf("a health check may read more: %s", answer)
	}
	for _, user := range []string{"worker", "dispatcher", "replica", "sentinel"} {
		c := client(t, addr, user, users.password(t, user))
		for what, err := range map[string]error{
			"write another program's keys": c.Set(t.Context(), "other:key", "x", 0).Err(),
			"read another program's keys":  c.Exists(t.Context(), "other:key").Err(),
			"empty the server":             c.FlushAll(t.Context()).Err(),
			"change its configuration":     c.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(),
		} {
			if err == nil || !strings.Contains(err.Error(), "NOPERM") {
				t.Errorf("%s may %s: %v", user, what, err)
			}
		}
	}
}

// TestWritesOfUsersSurviveARestart checks that Redis replays all writes.
// Redis replays its append-only file as the user "default", and omits transactions
// for which this user has no rights.
func TestWritesOfUsersSurviveARestart(t *testing.T) {
	t.Parallel()
	users, dir := withPasswords(t), t.TempDir()
	start := func() string {
		return startRedis(t, "redis.conf", []string{"--aclfile", users.acl}, "dir /data", "dir "+dir)
	}
	first := start()
	keys := []string{"pf:{GSETASK:1}:head", "pf:{GSETASK:1}:marks"} // written by one script: a transaction in the file
	script := `redis.call('SET', KEYS[1], 'a') redis.call('SET', KEYS[2], 'b') return 1`
	if err := client(t, first, "worker", users.password(t, "worker")).Eval(t.Context(), script, keys).Err(); err != nil {
		t.Fatal(err)
	}
	operator := client(t, first, "operator", users.password(t, "operator"))
	if how, err := operator.ConfigGet(t.Context(), "appendfsync").Result(); err != nil || how["appendfsync"] != "everysec" {
		t.Errorf("a crash of the machine may lose confirmed writes: %v, %v", how, err)
	}
	_ = operator.Shutdown(t.Context()).Err() // the server ends without a reply
	second := start()
	again := client(t, second, "worker", users.password(t, "worker"))
	var there int64
	testenv.Eventually(t, time.Minute, func() bool {
		var err error
		there, err = again.Exists(t.Context(), keys...).Result()
		return err == nil
	}, "Redis has read its file")
	if there != int64(len(keys)) {
		t.Errorf("%d of %d keys exist after a restart", there, len(keys))
	}
	if err := client(t, second, "", "").Ping(t.Context()).Err(); err == nil {
		t.Error("Redis accepts commands without a user")
	}
}

// TestAnOperatorReplacesAPassword follows docs/how-to/create-redis-users.md.
func TestAnOperatorReplacesAPassword(t *testing.T) {
	t.Parallel()
	users := withPasswords(t)
	addr := startRedis(t, "redis.conf", []string{"--aclfile", users.acl}, "dir /data", "dir "+t.TempDir())
	before := users.password(t, "worker")
	if err := os.Remove(filepath.Join(users.passwords, "worker.password")); err != nil {
		t.Fatal(err)
	}
	users.make(t)
	operator := client(t, addr, "operator", users.password(t, "operator"))
	if err := operator.Do(t.Context(), "ACL", "LOAD").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client(t, addr, "worker", users.password(t, "worker")).Ping(t.Context()).Err(); err != nil {
		t.Errorf("the new password: %v", err)
	}
	if err := client(t, addr, "worker", before).Ping(t.Context()).Err(); err == nil {
		t.Error("the old password is still valid")
	}
}
