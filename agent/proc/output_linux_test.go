package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// appending returns the output of a command that prints something.
func appending(t *testing.T) *outputFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &outputFile{path: path, file: f}
}

const (
	lineLength = 256 // bytes, with the line's end
	fillOutput = MaxOutput / lineLength
)

// numbered are n lines, counted from first.
func numbered(first, n int) []byte {
	lines := bytes.Repeat([]byte{'0'}, n*lineLength)
	for i := range n {
		number := strconv.Itoa(first + i)
		end := (i+1)*lineLength - 1
		copy(lines[end-len(number):], number)
		lines[end] = '\n'
	}
	return lines
}

// wantNumbered fails unless the text consists of consecutive lines in the form of numbered, of
// which the first may be truncated. It returns the last number.
func wantNumbered(t *testing.T, text string) (last int) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines[1:] {
		number, err := strconv.Atoi(line)
		if err != nil || len(line) != lineLength-1 || i > 0 && number != last+1 {
			t.Fatalf("%q comes after line %d: %v", line, last, err)
		}
		last = number
	}
	return last
}

func TestNothingOfTheEndIsLostOfAWriterThatNeverPauses(t *testing.T) {
	t.Parallel()
	const chunk, total = 100, 4 * fillOutput // lines
	o := appending(t)
	var written atomic.Int64
	done := make(chan error, 1)
	go func() {
		for n := 0; n < total; n += chunk {
			if _, err := o.file.Write(numbered(n, chunk)); err != nil {
				done <- err
				return
			}
			written.Store(int64(n + chunk))
		}
		done <- nil
	}()
	var holes int
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
		}
		before := o.hole
		o.bound()
		if o.hole > before {
			holes++
		}
		if written.Load() > retainedOutput/lineLength {
			end := o.tail(retainedOutput)
			wantNumbered(t, end)
			if len(end) != retainedOutput {
				t.Fatalf("the end has %d bytes, want %d", len(end), retainedOutput)
			}
		}
	}
	if last := wantNumbered(t, o.tail(OutputTail)); last < total-1 {
		t.Errorf("the last line is %d", last)
	}
	info, err := o.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if holes == 0 || info.Size() < total*lineLength || diskUsage(info) > MaxOutput+retainedOutput {
		t.Errorf("%d holes; the file has %d bytes and takes %d", holes, info.Size(), diskUsage(info))
	}
}

func TestFileIsEmptiedBeforeItIsTooLongForItsFileSystem(t *testing.T) {
	t.Parallel()
	o := appending(t)
	if err := o.file.Truncate(maxLength - 1); err != nil {
		t.Fatal(err)
	}
	o.bound()
	if o.hole != maxLength-1-retainedOutput {
		t.Fatalf("the hole has %d bytes", o.hole)
	}
	for n := range 3 {
		if _, err := o.file.Write(numbered(n*fillOutput, fillOutput)); err != nil {
			t.Fatal(err)
		}
		o.bound()
		if last := wantNumbered(t, o.tail(OutputTail)); last != (n+1)*fillOutput-1 {
			t.Errorf("the last line is %d", last)
		}
	}
	if o.hole >= 3*MaxOutput {
		t.Errorf("the hole has %d bytes", o.hole)
	}
}

func TestWhatSomebodyElseEmptiedIsBoundedAgain(t *testing.T) {
	t.Parallel()
	o := appending(t)
	for range 2 {
		for range 2 {
			if _, err := o.file.Write(numbered(0, fillOutput)); err != nil {
				t.Fatal(err)
			}
			o.bound()
		}
		if info, err := o.file.Stat(); err != nil || diskUsage(info) > MaxOutput {
			t.Fatalf("the file takes %d bytes: %v", diskUsage(info), err)
		}
		if err := o.file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		o.bound()
	}
}
