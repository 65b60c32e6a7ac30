package deploy_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// object has the checked fields of a Kubernetes object. deploycheck validates the
// objects.
type object struct {
	Kind     string
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Data map[string]string // of a ConfigMap
	Spec struct {
		Replicas       int
		MaxUnavailable any // of a PodDisruptionBudget
		Strategy       struct {
			RollingUpdate struct{ MaxSurge, MaxUnavailable any }
		}
		Selector    json.RawMessage // of a Service: only labels
		PodSelector selector
		Template    struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     pod
		}
		Ports       []servicePort
		PolicyTypes []string
		Ingress     []struct {
			From  []json.RawMessage
			Ports []servicePort
		}
		Egress []struct {
			To []struct{ IPBlock *ipBlock }
		}
	}
}

type ipBlock struct {
	CIDR   netip.Prefix
	Except []netip.Prefix
}

type selector struct{ MatchLabels map[string]string }

type servicePort struct{ Port, TargetPort any }

type pod struct {
	Containers                    []container
	TerminationGracePeriodSeconds int
	EnableServiceLinks            *bool
	AutomountServiceAccountToken  *bool
	SecurityContext               struct {
		RunAsNonRoot   bool
		RunAsUser      int
		FSGroup        int
		SeccompProfile struct{ Type string }
	}
	TopologySpreadConstraints []struct{ LabelSelector selector }
	Affinity                  struct {
		PodAntiAffinity struct {
			Preferred []struct {
				PodAffinityTerm struct{ LabelSelector selector }
			} `json:"preferredDuringSchedulingIgnoredDuringExecution"`
		}
	}
	Volumes     []volume
	Tolerations []struct{ Operator, Key, Effect string }
}

type volume struct {
	Name      string
	ConfigMap struct{ Name string }
	Secret    struct {
		SecretName  string
		Optional    bool
		DefaultMode os.FileMode
		Items       []struct{ Key, Path string }
	}
}

type container struct {
	Image         string
	Command, Args []string
	Env           []struct {
		Name, Value string
	}
	EnvFrom []struct{ ConfigMapRef struct{ Name string } }
	Ports   []struct {
		Name          string
		ContainerPort int
	}
	Resources struct{ Requests, Limits map[string]string }
	Lifecycle struct {
		PreStop struct{ Sleep struct{ Seconds int } }
	}
	VolumeMounts    []volumeMount
	SecurityContext struct {
		AllowPrivilegeEscalation *bool
		ReadOnlyRootFilesystem   bool
		Capabilities             struct{ Drop []string }
	}
	StartupProbe, ReadinessProbe, LivenessProbe *probe
}

type volumeMount struct {
	Name, MountPath string
	ReadOnly        bool
}

type probe struct{ HTTPGet struct{ Path, Port string } }

// probes returns the paths of the probes, "" for a missing probe.
func (c container) probes() (startup, readiness, liveness string) {
	path := func(p *probe) string {
		if p == nil {
			return ""
		}
		return p.HTTPGet.Path
	}
	return path(c.StartupProbe), path(c.ReadinessProbe), path(c.LivenessProbe)
}

// port returns the number of a container's port.
func (c container) port(t *testing.T, name string) int {
	t.Helper()
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	t.Fatalf("%s has no port %q", c.Image, name)
	return 0
}

// deploycheck runs the program with the libraries of Kubernetes and Prometheus, and
// decodes its output.
func deploycheck(t *testing.T, into any, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command(testenv.BuildTool(t, "deploy/testdata/deploycheck", "github.com/procfleet/procfleet/deploy/testdata/deploycheck"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("deploycheck %q: %v\n%s", args, err, &said)
	}
	if err := json.Unmarshal(out, into); err != nil {
		t.Fatal(err)
	}
}

func manifests(t *testing.T, folder string) []object {
	t.Helper()
	var all []object
	deploycheck(t, &all, "", "manifests", folder)
	return all
}

// with returns the objects of a kind, at least one.
func with(t *testing.T, all []object, kind string) []object {
	t.Helper()
	of := slices.DeleteFunc(slices.Clone(all), func(o object) bool { return o.Kind != kind })
	if len(of) == 0 {
		t.Fatalf("no object of kind %s", kind)
	}
	return of
}

func (o object) chosen(t *testing.T) map[string]string {
	t.Helper()
	var s selector
	into := any(&s)
	if o.Kind == "Service" {
		into = &s.MatchLabels
	}
	if err := json.Unmarshal(o.Spec.Selector, into); err != nil {
		t.Fatalf("%s %s: %v", o.Kind, o.Metadata.Name, err)
	}
	return s.MatchLabels
}

// selects reports whether labels contain all wanted labels.
func selects(want, labels map[string]string) bool {
	for name, value := range want {
		if labels[name] != value {
			return false
		}
	}
	return true
}

func TestKubernetesSelectorsFindThePodsOfOneRole(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/servers")
	deployments := with(t, all, "Deployment")
	for _, d := range deployments {
		labels := d.Spec.Template.Metadata.Labels
		choices := []map[string]string{d.chosen(t)}
		for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
			choices = append(choices, spread.LabelSelector.MatchLabels)
		}
		for _, apart := range d.Spec.Template.Spec.Affinity.PodAntiAffinity.Preferred {
			choices = append(choices, apart.PodAffinityTerm.LabelSelector.MatchLabels)
		}
		for _, budget := range with(t, all, "PodDisruptionBudget") {
			if budget.Metadata.Name == d.Metadata.Name {
				choices = append(choices, budget.chosen(t))
			}
		}
		if len(choices) != 4 {
			t.Errorf("%s: %d selectors for its own pods, want 4", d.Metadata.Name, len(choices))
		}
		for _, want := range choices {
			if !maps.Equal(want, labels) {
				t.Errorf("%s: %v does not select exactly pods with %v", d.Metadata.Name, want, labels)
			}
		}
	}
	for _, s := range with(t, all, "Service") {
		for _, d := range deployments {
			if found := selects(s.chosen(t), d.Spec.Template.Metadata.Labels); found != (s.Metadata.Name == d.Metadata.Name) {
				t.Errorf("service %s selects %s: %v", s.Metadata.Name, d.Metadata.Name, found)
			} else if found {
				d.Spec.Template.Spec.Containers[0].port(t, s.Spec.Ports[0].TargetPort.(string))
			}
		}
	}
}

func TestKubernetesNetworkPoliciesOpenPortsThatPodsHave(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/servers")
	for _, policy := range with(t, all, "NetworkPolicy") {
		found := 0
		for _, d := range with(t, all, "Deployment") {
			if !selects(policy.Spec.PodSelector.MatchLabels, d.Spec.Template.Metadata.Labels) {
				continue
			}
			found++
			for _, from := range policy.Spec.Ingress {
				for _, p := range from.Ports {
					d.Spec.Template.Spec.Containers[0].port(t, p.Port.(string))
				}
			}
		}
		if found == 0 {
			t.Errorf("policy %s selects no pod", policy.Metadata.Name)
		}
	}
}

// TestKubernetesRolesHaveMinimalRights checks the requirements of the
// strictest pod security standard, and some more.
func TestKubernetesRolesHaveMinimalRights(t *testing.T) {
	t.Parallel()
	for _, d := range with(t, manifests(t, "kubernetes/servers"), "Deployment") {
		p := d.Spec.Template.Spec
		c := p.Containers[0]
		for what, is := range map[string]bool{
			"runs as root":                       p.SecurityContext.RunAsNonRoot && p.SecurityContext.RunAsUser != 0,
			"has no seccomp profile":             p.SecurityContext.SeccompProfile.Type == "RuntimeDefault",
			"has a token for Kubernetes":         p.AutomountServiceAccountToken != nil && !*p.AutomountServiceAccountToken,
			"has variables of services":          p.EnableServiceLinks != nil && !*p.EnableServiceLinks,
			"may gain rights":                    c.SecurityContext.AllowPrivilegeEscalation != nil && !*c.SecurityContext.AllowPrivilegeEscalation,
			"writes into its image":              c.SecurityContext.ReadOnlyRootFilesystem,
			"keeps capabilities":                 slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}),
			"has no limit of memory":             c.Resources.Limits["memory"] != "",
			"has a limit of processor time":      c.Resources.Limits["cpu"] == "",
			"has secrets that everybody reads":   !slices.ContainsFunc(p.Volumes, func(v volume) bool { return v.Secret.DefaultMode != 0o440 }),
			"may write over its secrets":         !slices.ContainsFunc(c.VolumeMounts, func(m volumeMount) bool { return !m.ReadOnly }),
			"cannot read its secrets":            p.SecurityContext.FSGroup != 0,
			"is killed before it ends by itself": p.TerminationGracePeriodSeconds >= c.Lifecycle.PreStop.Sleep.Seconds+drain(t, c)+20,
		} {
			if !is {
				t.Errorf("%s %s", d.Metadata.Name, what)
			}
		}
	}
}

// TestKubernetesProbesIgnoreUnavailableServers checks that Kubernetes restarts a pod
// only for a fault of its process, that a dispatcher which was once ready stays in
// the service and responds 503, and that an update waits for ready workers.
func TestKubernetesProbesIgnoreUnavailableServers(t *testing.T) {
	t.Parallel()
	want := map[string][3]string{"dispatcher": {"/readyz", "/healthz", "/healthz"}, "worker": {"", "/readyz", "/healthz"}}
	for _, d := range with(t, manifests(t, "kubernetes/servers"), "Deployment") {
		var got [3]string
		got[0], got[1], got[2] = d.Spec.Template.Spec.Containers[0].probes()
		if got != want[d.Metadata.Name] {
			t.Errorf("%s has the startup, readiness and liveness probes %q, want %q", d.Metadata.Name, got, want[d.Metadata.Name])
		}
	}
}

// TestKubernetesRolesHaveTheSecretsThatTheyUse checks that each role has the
// secrets that it uses and no others.
func TestKubernetesRolesHaveTheSecretsThatTheyUse(t *testing.T) {
	t.Parallel()
	for _, d := range with(t, manifests(t, "kubernetes/servers"), "Deployment") {
		p := d.Spec.Template.Spec
		for i, v := range p.Volumes {
			for _, item := range v.Secret.Items {
				file := "=" + p.Containers[0].VolumeMounts[i].MountPath + "/" + item.Path
				if !slices.ContainsFunc(p.Containers[0].Args, func(arg string) bool { return strings.HasSuffix(arg, file) }) {
					t.Errorf("%s has the secret %s but no flag for it", d.Metadata.Name, item.Key)
				}
			}
		}
		if slices.ContainsFunc(p.Containers[0].Args, func(arg string) bool { return strings.HasPrefix(arg, "--allow-unauthenticated") }) {
			t.Errorf("%s accepts unauthenticated callers", d.Metadata.Name)
		}
		if user := "rediss://" + d.Metadata.Name + "@"; !strings.Contains(strings.Join(p.Containers[0].Args, " "), user) {
			t.Errorf("%s has no Redis URL with %s, the user whose password it has", d.Metadata.Name, user)
		}
	}
}

// TestKubernetesPoliciesDenyByDefault checks that the policies close
// everything except connections from named peers, and that no callback can connect
// to the metadata service with a node's credentials.
func TestKubernetesPoliciesDenyByDefault(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/servers")
	if level := with(t, all, "Namespace")[0].Metadata.Labels["pod-security.kubernetes.io/enforce"]; level != "restricted" {
		t.Errorf("the namespace enforces the pod security level %q, want restricted", level)
	}
	closed := false
	for _, policy := range with(t, all, "NetworkPolicy") {
		spec := &policy.Spec
		closed = closed || len(spec.PodSelector.MatchLabels) == 0 && len(spec.Ingress)+len(spec.Egress) == 0 && len(spec.PolicyTypes) == 2
		for _, in := range spec.Ingress {
			if len(in.From) == 0 {
				t.Errorf("%s opens %v to all peers", policy.Metadata.Name, in.Ports)
			}
		}
		for _, out := range spec.Egress {
			for _, to := range out.To {
				for _, metadata := range []string{"169.254.169.254", "fd00:ec2::254", "fe80::1"} {
					if to.IPBlock.has(netip.MustParseAddr(metadata)) {
						t.Errorf("%s permits connections to %s", policy.Metadata.Name, metadata)
					}
				}
			}
		}
	}
	if !closed {
		t.Error("no policy denies by default")
	}
}

func (b *ipBlock) has(addr netip.Addr) bool {
	return b != nil && b.CIDR.Contains(addr) && !slices.ContainsFunc(b.Except, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// TestKubernetesDisruptsOnePodAtATime checks drains of nodes and updates of
// roles.
func TestKubernetesDisruptsOnePodAtATime(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/servers")
	for _, d := range with(t, all, "Deployment") {
		if update := d.Spec.Strategy.RollingUpdate; d.Spec.Replicas < 2 || update.MaxUnavailable != float64(0) || update.MaxSurge != float64(1) {
			t.Errorf("%s: %d replicas, updated with %+v", d.Metadata.Name, d.Spec.Replicas, update)
		}
	}
	for _, budget := range with(t, all, "PodDisruptionBudget") {
		if budget.Spec.MaxUnavailable != float64(1) {
			t.Errorf("%s permits %v unavailable pods", budget.Metadata.Name, budget.Spec.MaxUnavailable)
		}
	}
}

// TestKubernetesRolesHaveGOMEMLIMIT compares GOMEMLIMIT with
// the memory limit of the container.
func TestKubernetesRolesHaveGOMEMLIMIT(t *testing.T) {
	t.Parallel()
	for _, d := range with(t, manifests(t, "kubernetes/servers"), "Deployment") {
		c := d.Spec.Template.Spec.Containers[0]
		limit := atoi(t, strings.TrimSuffix(c.Resources.Limits["memory"], "Mi"))
		told := ""
		for _, e := range c.Env {
			if e.Name == "GOMEMLIMIT" {
				told = strings.TrimSuffix(e.Value, "MiB")
			}
		}
		if n := atoi(t, told); n > limit*9/10 || n < limit/2 {
			t.Errorf("%s: GOMEMLIMIT is %d MiB of %d", d.Metadata.Name, n, limit)
		}
	}
}

// drain returns the value of --drain of a role in seconds.
func drain(t *testing.T, c container) int {
	t.Helper()
	for _, arg := range c.Args {
		if value, is := strings.CutPrefix(arg, "--drain="); is {
			d, err := time.ParseDuration(value)
			if err != nil {
				t.Fatal(err)
			}
			return int(d.Seconds())
		}
	}
	t.Fatalf("no --drain in %q", c.Args)
	return 0
}

// TestKubernetesRolesStartAndRespondToProbes starts each role with the arguments
// of its pod, with the secret's files in a folder of the test and with other ports.
func TestKubernetesRolesStartAndRespondToProbes(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/servers")
	for _, d := range with(t, all, "Deployment") {
		t.Run(d.Metadata.Name, func(t *testing.T) {
			t.Parallel()
			p := d.Spec.Template.Spec
			c := p.Containers[0]
			if c.Image != "procfleet:latest" {
				t.Fatalf("image %s", c.Image)
			}
			binary := testenv.BuildBinary(t, "./cmd/procfleet")
			env := settingsOf(t, all, c)
			args := expand(c.Args, env)
			for i, v := range p.Volumes {
				args = inFolder(args, c.VolumeMounts[i].MountPath, secrets(t, binary, v))
			}
			checked := exec.Command(binary, append(slices.Clone(args), "--check-config")...)
			checked.Env = append(os.Environ(), env...)
			if out, err := checked.CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
				t.Fatalf("%q: %v\n%s", args, err, out)
			}
			local := map[int]string{}
			for _, port := range c.Ports {
				local[port.ContainerPort] = testenv.FreeAddress(t)
				for i := range args {
					args[i] = strings.Replace(args[i], "=:"+strconv.Itoa(port.ContainerPort), "="+local[port.ContainerPort], 1)
				}
			}
			// An unknown name: the role waits for its servers and responds to its
			// probes.
			child := testenv.StartChild(t, append(env, "PROCFLEET_NATS=nats://127.0.0.1:1"), binary, args...)
			for _, pr := range []*probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				if pr == nil {
					continue
				}
				url := "http://" + local[c.port(t, pr.HTTPGet.Port)] + pr.HTTPGet.Path
				want := map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable}[pr.HTTPGet.Path]
				testenv.Eventually(t, time.Minute, func() bool { return status(t, url) == want }, url+" responds")
			}
			scraped := "http://" + local[atoi(t, d.Spec.Template.Metadata.Annotations["prometheus.io/port"])] + d.Spec.Template.Metadata.Annotations["prometheus.io/path"]
			if got := status(t, scraped); got != http.StatusOK {
				t.Errorf("%s: %d", scraped, got)
			}
			child.Kill()
		})
	}
}

// status returns the HTTP status, or 0 if there was no response.
func status(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// settingsOf returns the environment of a container.
func settingsOf(t *testing.T, all []object, c container) []string {
	t.Helper()
	var env []string
	for _, from := range c.EnvFrom {
		for name, value := range configMap(t, all, from.ConfigMapRef.Name) {
			env = append(env, name+"="+value)
		}
	}
	for _, e := range c.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	return env
}

func configMap(t *testing.T, all []object, name string) map[string]string {
	t.Helper()
	for _, m := range with(t, all, "ConfigMap") {
		if m.Metadata.Name == name {
			return m.Data
		}
	}
	t.Fatalf("no ConfigMap %s", name)
	return nil
}

// expand returns args with the values of variables, like Kubernetes.
func expand(args, env []string) []string {
	var oldnew []string
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		oldnew = append(oldnew, "$("+name+")", value)
	}
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = strings.NewReplacer(oldnew...).Replace(arg)
	}
	return out
}

// inFolder returns args with a folder replaced by another one.
func inFolder(args []string, old, folder string) []string {
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = strings.Replace(arg, old+"/", folder+"/", 1)
	}
	return out
}

// secrets creates the files that a pod mounts from a secret.
func secrets(t *testing.T, binary string, v volume) (folder string) {
	t.Helper()
	folder = t.TempDir()
	ca := tlstest.NewCA(t, "cluster")
	own := ca.Issue(t, "door")
	for _, item := range v.Secret.Items {
		path := filepath.Join(folder, item.Path)
		switch item.Key {
		case "ca.pem":
			copied(t, ca.File, path)
		case "tls.crt":
			copied(t, own.Cert, path)
		case "tls.key":
			copied(t, own.Key, path)
		case "server.creds":
			fleet := t.TempDir()
			if out, err := exec.Command(binary, "nats-auth", "init", "--nats-auth", filepath.Join(fleet, "nats-auth")).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			copied(t, filepath.Join(fleet, "nats-auth", "server.creds"), path)
		case "dispatcher.password", "worker.password":
			copied(t, filepath.Join(withPasswords(t).passwords, item.Key), path)
		case "apps.yaml":
			if out, err := exec.Command(binary, "app", "add", "shop", "--apps", path).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		case "fleet-key.yaml":
			if err := fleetkey.Create(path); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("no rule to create %s", item.Key)
		}
		if err := os.Chmod(path, v.Secret.DefaultMode); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func copied(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
