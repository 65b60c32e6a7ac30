//go:build linux

package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/procfleet/procfleet/internal/testenv"
)

// Files of configuration in a node's folder.
const (
	natsFile     = "nats.conf"
	redisFile    = "redis.conf"
	sentinelFile = "sentinel.conf"
)

// configure writes a node's configuration: that of deploy/, with what each
// installation has to put in.
func (f *Fleet) configure(n *Node) error {
	var file, text string
	var err error
	switch n.Kind {
	case NATS:
		file = natsFile
		text, err = f.natsConfig(n)
	case Leaf:
		file = natsFile
		text, err = f.leafConfig()
	case Redis:
		file, text = redisFile, f.redisConfig(n)
	case Sentinel:
		file, text = sentinelFile, f.sentinelConfig()
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(f.path(n.Name, "data", file), []byte(text), 0o666)
}

// edit is a text of a file of deploy/ and what takes its place.
type edit struct{ old, new string }

// deployed is a file of deploy/ after edits, of which each must find its text.
func deployed(name string, edits ...edit) (string, error) {
	data, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "deploy", name))
	if err != nil {
		return "", err
	}
	text := string(data)
	for _, e := range edits {
		if !strings.Contains(text, e.old) {
			return "", fmt.Errorf("deploy/%s: there is no %q to be replaced", name, e.old)
		}
		text = strings.ReplaceAll(text, e.old, e.new)
	}
	return text, nil
}

func (f *Fleet) natsConfig(n *Node) (string, error) {
	edits := []edit{
		{"server_name: procfleet-1", "server_name: " + n.Name},
		{"http: 127.0.0.1:8222", "http: 0.0.0.0:8222"}, // asked from outside of the container
		{"/var/lib/nats", "/data/nats"},
	}
	example := 2
	for _, other := range f.Nodes(NATS) {
		if other != n {
			edits = append(edits, edit{fmt.Sprintf("nats-%d.example", example), other.IP})
			example++
		}
	}
	return deployed("nats-cluster.conf", edits...)
}

// accountPreloaded is a line of broker.conf.
var accountPreloaded = regexp.MustCompile(`(?m)^  (A\w+): `)

func (f *Fleet) leafConfig() (string, error) {
	broker, err := os.ReadFile(f.path(keysDir, "nats-auth/broker.conf"))
	if err != nil {
		return "", err
	}
	accounts := accountPreloaded.FindAllSubmatch(broker, -1)
	if len(accounts) == 0 {
		return "", fmt.Errorf("there is no account in %q", broker)
	}
	edits := []edit{
		{"server_name: area-3", "server_name: leaf\nhttp: 0.0.0.0:8222"}, // asked from outside of the container
		{"/var/lib/nats", "/data/nats"},
		{"account: ACCOUNT", "account: " + string(accounts[len(accounts)-1][1])}, // the last one, as the file says
		{"/etc/nats/area-3.creds", "/data/" + leafCreds},
	}
	for i, n := range f.Nodes(NATS) {
		edits = append(edits, edit{fmt.Sprintf("nats-%d.example", i+1), n.IP})
	}
	return deployed("nats-leaf.conf", edits...)
}

// masterName is how the Sentinels call the Redis that counts.
const masterName = "procfleet"

func (f *Fleet) redisConfig(n *Node) string {
	text := `dir /data
port 6379
bind 0.0.0.0
protected-mode no
maxmemory 512mb
maxmemory-policy noeviction
appendonly yes
appendfsync everysec
`
	first := f.Nodes(Redis)[0]
	switch {
	case f.cfg.RedisCluster:
		text += "cluster-enabled yes\ncluster-node-timeout 3000\n"
	case n != first:
		text += "replicaof " + first.IP + " 6379\n"
	}
	return text
}

func (f *Fleet) sentinelConfig() string {
	return fmt.Sprintf(`dir /data
port 26379
bind 0.0.0.0
protected-mode no
sentinel monitor %[1]s %[2]s 6379 2
sentinel down-after-milliseconds %[1]s 3000
sentinel failover-timeout %[1]s 10000
`, masterName, f.Nodes(Redis)[0].IP)
}
