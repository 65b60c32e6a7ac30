//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// docBlock is a fenced block of a page with the marks above it.
type docBlock struct {
	language, text string
	line           int
	run            string // name of an executed block
	expect         string // text that its output must contain
	notRun         string // reason why it is not executed
}

var docComment = regexp.MustCompile(`^<!-- (run|compile|expect|not run): (.+) -->$`)

// docBlocks returns the fenced blocks of a page.
func docBlocks(t *testing.T, page string) []docBlock {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []docBlock
	var next docBlock
	inside, indent := false, "" // indent of a block in a list
	for i, line := range strings.Split(string(text), "\n") {
		bare := strings.TrimLeft(line, " ")
		comment := docComment.FindStringSubmatch(bare)
		switch {
		case inside && bare == "```":
			blocks, next, inside = append(blocks, next), docBlock{}, false
		case inside:
			next.text += strings.TrimPrefix(line, indent) + "\n"
		case strings.HasPrefix(bare, "```"):
			next.language, next.line, inside, indent = bare[3:], i+1, true, line[:len(line)-len(bare)]
		case comment == nil:
			next = docBlock{}
		case comment[1] == "expect":
			next.expect = comment[2]
		case comment[1] == "not run":
			next.notRun = comment[2]
		default:
			next.run = comment[2]
		}
	}
	return blocks
}

func docPages(t *testing.T, folder string) []string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(testenv.ModuleRoot(), "docs", folder, "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs/%s: %d pages, %v", folder, len(pages), err)
	}
	return pages
}

// TestEveryCommandInTheDocumentationIsRunOrMarked fails for a shell block that is
// neither executed nor has a reason, and logs the reasons.
func TestEveryCommandInTheDocumentationIsRunOrMarked(t *testing.T) {
	t.Parallel()
	for _, page := range append(docPages(t, "tutorials"), docPages(t, "how-to")...) {
		for _, b := range docBlocks(t, page) {
			at := fmt.Sprintf("%s:%d", filepath.Base(page), b.line)
			switch {
			case b.language == "":
				t.Errorf("%s: the block has no language", at)
			case b.language != "sh" || b.run != "":
			case b.notRun == "":
				t.Errorf("%s: the block is neither marked with <!-- run: NAME --> nor with <!-- not run: REASON -->", at)
			default:
				t.Logf("%s is not run: %s", at, b.notRun)
			}
		}
	}
}

// TestTutorialsWork executes each tutorial in an empty folder.
func TestTutorialsWork(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "curl", "apt-get install curl")
	for _, page := range docPages(t, "tutorials") {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			http := testenv.FreeAddress(t)
			nats := testenv.FreeAddress(t)
			runPage(t, page, t.TempDir(), strings.NewReplacer("127.0.0.1:8080", http, "127.0.0.1:4222", nats),
				"PROCFLEET_HTTP="+http, "PROCFLEET_SERVER=http://"+http)
		})
	}
}

// TestHowTosWork executes each how-to page with a system whose data folder is
// procfleet-data.
func TestHowTosWork(t *testing.T) {
	t.Parallel()
	for _, page := range docPages(t, "how-to") {
		if filepath.Base(page) == "submit-operations.md" { // see TestTheExamplesForProducersWork
			continue
		}
		if !strings.Contains(script(docBlocks(t, page)), "\n") {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			u := newUp(t)
			u.start()
			dir := t.TempDir()
			for link, to := range map[string]string{"procfleet-data": u.data, "docs": filepath.Join(testenv.ModuleRoot(), "docs")} {
				if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			runPage(t, page, dir, strings.NewReplacer("http://127.0.0.1:8080", u.c.url), "PROCFLEET_SERVER="+u.c.url)
		})
	}
}

const blockMark = "=== block "

// script returns the commands of a page from its top.
func script(blocks []docBlock) string {
	var text strings.Builder
	for i, b := range blocks {
		if b.language == "sh" && b.run != "" {
			fmt.Fprintf(&text, "echo '%s%d'\n%s", blockMark, i, b.text)
		}
	}
	return text.String()
}

// runPage executes the blocks of a page as one shell session in dir, which ends at
// the first error, and checks the output of each block.
func runPage(t *testing.T, page, dir string, addresses *strings.Replacer, env ...string) {
	t.Helper()
	blocks := docBlocks(t, page)
	programs := filepath.Join(dir, ".bin") // file names in the build cache differ from the program names
	if err := os.Mkdir(programs, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"procfleet", "procfleet-agent"} {
		if err := os.Symlink(testenv.BuildBinary(t, "./cmd/"+name), filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { killBelow(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*finishTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", addresses.Replace(script(blocks)))
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), env...), "PATH="+programs+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	printed := strings.Split(string(out), blockMark)
	for _, part := range printed[1:] {
		number, text, _ := strings.Cut(part, "\n")
		i, err := strconv.Atoi(number)
		if err != nil || i >= len(blocks) {
			t.Fatalf("block %q: %v", number, err)
		}
		if want := blocks[i].expect; !strings.Contains(text, want) {
			t.Errorf("%s:%d: %q is not in\n%s", filepath.Base(page), blocks[i].line, want, text)
		}
	}
}

// killBelow kills the remaining processes of a page, which have their working
// directory or program below dir.
func killBelow(dir string) {
	links, _ := filepath.Glob("/proc/[0-9]*/[ce][wx][de]")
	for _, link := range links {
		to, err := os.Readlink(link)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err == nil && pid > 1 && strings.HasPrefix(to+"/", dir+"/") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
