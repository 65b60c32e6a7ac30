//go:build linux

package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
)

// layOut creates the networks and assigns the nodes to them.
func (f *Fleet) layOut(ctx context.Context) error {
	near, err := f.network(ctx, "near")
	if err != nil {
		return err
	}
	f.near, f.gateway = f.name+"-near", near+".1"
	far, err := f.network(ctx, "far")
	if err != nil {
		return err
	}
	f.far = f.name + "-far"

	add := func(kind Kind, count, first int) {
		for i := range count {
			f.add(fmt.Sprintf("%s-%d", kind, i+1), kind, port{f.near, fmt.Sprintf("%s.%d", near, first+i)})
		}
	}
	add(NATS, natsServers, 11)
	f.add("leaf", Leaf, port{f.near, near + ".19"}, port{f.far, far + ".19"})
	if f.cfg.RedisCluster {
		add(Redis, clusterNodes, 21)
	} else {
		add(Redis, 1+f.cfg.RedisReplicas, 21)
		add(Sentinel, sentinels, 31)
	}
	add(Dispatcher, dispatchers, 41)
	add(Worker, workers, 51)
	if f.cfg.LightAgents > 0 {
		add(Light, 1, 61)
	}
	for i := range 2 * agentsPerArea {
		at, area := port{f.near, fmt.Sprintf("%s.%d", near, 101+i)}, 0
		if i >= agentsPerArea {
			at, area = port{f.far, fmt.Sprintf("%s.%d", far, 101+i)}, FarArea
		}
		n := f.add(fmt.Sprintf("agent-%d", i+1), Agent, at)
		n.Host = fmt.Sprintf("%d:%s", area, at.ip)
		n.marks = f.path(n.Name, "marks")
		if err := os.MkdirAll(n.marks, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) add(name string, kind Kind, ports ...port) *Node {
	n := &Node{Name: name, Kind: kind, IP: ports[0].ip, fleet: f, ports: ports}
	f.nodes = append(f.nodes, n)
	return n
}

// network creates a network with addresses that are unused on this machine, and
// returns their first three numbers.
func (f *Fleet) network(ctx context.Context, name string) (prefix string, err error) {
	for range 20 {
		prefix = fmt.Sprintf("10.%d.%d", 200+rand.N(50), rand.N(250))
		if _, err = run(ctx, "docker", "network", "create", "--subnet", prefix+".0/24", f.name+"-"+name); err == nil {
			return prefix, nil
		}
	}
	return "", err
}

// run creates and starts a node's container. Its /data is a folder of this machine,
// so it survives the container.
func (f *Fleet) run(ctx context.Context, n *Node) error {
	data := f.path(n.Name, "data")
	if err := os.MkdirAll(data, 0o777); err != nil {
		return err
	}
	if f.cfg.SmallDisks && n.hasSmallDisk() {
		if err := n.mountSmallDisk(ctx); err != nil {
			return err
		}
	}
	mode := os.FileMode(0o777) // the server's image has its own user
	if n.Kind == Agent {
		mode = 0o755 // the agent runs as root, and rejects a folder that other accounts can replace
	}
	if err := os.Chmod(data, mode); err != nil {
		return err
	}
	args := []string{
		"create", "--name", n.container(), "--hostname", n.Name, "--restart", "no", "--stop-timeout", "40",
		"--network", n.ports[0].network, "--ip", n.ports[0].ip, "--volume", data + ":/data",
		"--cap-add", "NET_ADMIN", "--log-opt", "max-size=20m",
	}
	if n.Kind == Agent {
		args = append(args, "--init", "--volume", n.marks+":"+MarkFolder)
	}
	if f.cfg.Clocks {
		if err := n.writeClock(0); err != nil {
			return err
		}
		if n.Kind == Redis || n.Kind == Sentinel {
			args = append(args, redisClockFlags...)
		}
	}
	if err := f.copyKeys(n); err != nil {
		return err
	}
	if err := f.configure(n); err != nil {
		return err
	}
	image, command := f.command(n)
	if _, err := run(ctx, "docker", append(append(args, image), command...)...); err != nil {
		return err
	}
	for _, p := range n.ports[1:] {
		if _, err := run(ctx, "docker", "network", "connect", "--ip", p.ip, p.network, n.container()); err != nil {
			return err
		}
	}
	_, err := run(ctx, "docker", "start", n.container())
	return err
}

// command returns the image of a node and its arguments.
func (f *Fleet) command(n *Node) (image string, args []string) {
	switch n.Kind {
	case NATS, Leaf:
		return f.cfg.Images.NATS, []string{"--config", "/data/" + natsFile}
	case Redis:
		return f.cfg.Images.Redis, []string{"redis-server", "/data/" + redisFile}
	case Sentinel:
		return f.cfg.Images.Redis, []string{"redis-server", "/data/" + sentinelFile, "--sentinel"}
	case Dispatcher:
		return f.cfg.Images.Server, append([]string{"dispatcher", "--http=0.0.0.0:8080", "--allow-unauthenticated"}, f.backends("dispatcher")...)
	case Worker:
		return f.cfg.Images.Server, append([]string{"worker", "--status-http=0.0.0.0:9090"}, f.backends("worker")...)
	case Light:
		return f.cfg.Images.Bench, []string{
			"simulate", "--agents=" + fmt.Sprint(f.cfg.LightAgents), "--latency=100ms", "--connections=4", "--fleet-key=/data/" + keyFile,
			"--nats=" + strings.Join(f.NATSURLs(), ","), "--nats-ca=/data/" + caFile, "--nats-creds=/data/" + serverCreds,
		}
	case Agent:
		return f.cfg.Images.Agent, []string{
			"--nats=" + strings.Join(f.natsOf(n), ","), "--nats-ca=/data/" + caFile, "--identity=/data/" + identityFile,
			"--data=/data/agent", "--status-http=0.0.0.0:9090",
		}
	default:
		panic("no such kind of node: " + string(n.Kind))
	}
}

// backends returns the flags that dispatchers and workers share, with the role's
// Redis user.
func (f *Fleet) backends(user string) []string {
	return []string{
		"--nats=" + strings.Join(f.NATSURLs(), ","), "--nats-ca=/data/" + caFile, "--nats-creds=/data/" + serverCreds, "--stream-replicas=" + fmt.Sprint(natsServers),
		"--fleet-key=/data/" + keyFile, "--redis=" + f.redisURL(user), "--redis-ca=/data/" + caFile, "--redis-cert=/data/" + certFile, "--redis-key=/data/" + privateFile,
		"--redis-wait-replicas=" + fmt.Sprint(f.cfg.WaitReplicas),
	}
}

func (f *Fleet) redisURL(name string) string {
	doors, port, how, user := f.Nodes(Sentinel), sentinelPort, "/0?master_name="+masterName+"&username="+name+"&password="+f.secret, ""
	if f.cfg.RedisCluster {
		doors, port, how, user = f.Nodes(Redis), redisPort, "?cluster=true", name+":"+f.secret+"@"
	}
	all := addresses(doors, port)
	return "rediss://" + user + all[0] + how + "&addr=" + strings.Join(all[1:], "&addr=")
}

func addresses(nodes []*Node, port string) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.IP+":"+port)
	}
	return all
}

// natsOf returns the NATS servers of an agent.
func (f *Fleet) natsOf(agent *Node) []string {
	if agent.ports[0].network == f.near {
		return f.NATSURLs()
	}
	return []string{"tls://" + f.Node("leaf").ports[1].ip + ":4222"}
}

// joinCluster creates the Redis Cluster when all its servers respond.
func (f *Fleet) joinCluster(ctx context.Context) error {
	args := []string{"--cluster", "create"}
	for _, n := range f.Nodes(Redis) {
		if err := until(ctx, func() error { _, err := f.redis(ctx, n, "PING"); return err }); err != nil {
			return fmt.Errorf("%s does not respond: %w", n, err)
		}
		args = append(args, n.IP+":"+redisPort)
	}
	args = slices.Concat(f.redisTLSFlags(f.Nodes(Redis)[0]), f.redisUserFlags(), args, []string{"--cluster-replicas", "1", "--cluster-yes"})
	_, err := run(ctx, "redis-cli", args...)
	return err
}
