package testenv

import (
	"os"
	"syscall"
)

// WithoutProfile executes the test program again with empty login profiles of root, if the
// process may: agents run commands in login shells, and a developer's profile may take
// seconds, or wait for locks of its own. Call it first in TestMain.
func WithoutProfile() {
	const marker = "PROCFLEET_TEST_WITHOUT_PROFILE"
	const script = `
if unshare --mount true 2>/dev/null; then
	exec unshare --mount sh -c 'for f in ~root/.bash_profile ~root/.bash_login ~root/.profile; do
		[ ! -f "$f" ] || mount --bind /dev/null "$f"
	done; exec "$@"' sh "$@"
fi
exec "$@"`
	if os.Geteuid() != 0 || os.Getenv(marker) != "" {
		return
	}
	args := append([]string{"sh", "-c", script, "sh"}, os.Args...)
	_ = syscall.Exec("/bin/sh", args, append(os.Environ(), marker+"=1")) // without a shell the tests use the profile
}
