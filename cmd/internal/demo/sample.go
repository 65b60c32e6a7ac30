package demo

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet"
)

// Files of a sample service.
const (
	pidFile  = "demo.pid"
	specFile = "spec.yaml"
)

// startScript starts the program of a service in the background; it writes its own pid.
func startScript(program string) string {
	return "#!/bin/sh\n./" + program + " demo-process --pid-file " + pidFile + " </dev/null >>demo.log 2>&1 &\n"
}

const stopScript = `#!/bin/sh
kill "$(cat ` + pidFile + `)"
`

func (d *Demo) specFile(name string) string { return filepath.Join(d.Dir, name, specFile) }

// prepare writes the files of a service and returns its process spec.
func prepare(dir, name string) (spec procfleet.ProcessSpec, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return spec, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return spec, err
	}
	spec = sampleSpec(dir, name)
	if err := placeProgram(filepath.Join(dir, spec.ProcName)); err != nil {
		return spec, err
	}
	readable, err := yaml.Marshal(spec)
	if err != nil {
		return spec, err
	}
	return spec, errors.Join(
		writeScript(filepath.Join(dir, "start.sh"), startScript(spec.ProcName)),
		writeScript(filepath.Join(dir, "stop.sh"), stopScript),
		os.WriteFile(filepath.Join(dir, specFile), readable, 0o600),
	)
}

func writeScript(path, text string) error {
	return os.WriteFile(path, []byte(text), 0o700) //nolint:gosec // a script must be executable
}

func sampleSpec(dir, name string) procfleet.ProcessSpec {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name = Namespace, name
	spec.ProcName = "demo-" + name
	spec.SetupPath, spec.PidPath = dir, filepath.Join(dir, pidFile)
	spec.Control.Start, spec.Control.Stop = "./start.sh", "./stop.sh"
	spec.Control.NoProfile = true
	spec.Alive.OpTimeout = procfleet.Seconds(10)
	spec.Alive.StartCheckBegin = procfleet.Duration(300 * time.Millisecond)
	spec.Alive.StartCheckEnd = procfleet.Duration(500 * time.Millisecond)
	spec.Alive.StartInterval = procfleet.Duration(500 * time.Millisecond)
	if me, err := user.Current(); err == nil {
		spec.Account = me.Username // the default is root, whose processes only an agent of root may start
	}
	return spec
}

// placeProgram links or copies the running binary to path, under the name of the
// sample program: `go run` removes its binary at exit. An existing file remains,
// because it may be running.
func placeProgram(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Link(self, path); err == nil {
		return nil
	}
	return copyFile(self, path) // the link fails across file systems
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from) //nolint:gosec // the running binary
	if err != nil {
		return err
	}
	defer in.Close()
	part := to + ".part"
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o700) //nolint:gosec // a program must be executable
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(fmt.Errorf("copy %s: %w", from, err), out.Close())
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(part, to)
}
