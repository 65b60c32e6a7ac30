package procop

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
)

// outputFile is a file with the output of a process. Numbers increase with the starts of the
// process.
type outputFile struct {
	path   string
	hash   string // of the process key
	number int64
	offset int64 // of its first byte in the output of the process
	last   bool  // the process has ended
}

// parseOutput parses the path of an output file of a process.
func parseOutput(path string) (f outputFile, ok bool) {
	name, isOutput := strings.CutSuffix(filepath.Base(path), ".out")
	parts := strings.Split(name, "-")
	switch {
	case !isOutput:
		return f, false
	case len(parts) == 3 && parts[0] == "out":
	case len(parts) == 4 && parts[0] == "last":
		f.last = true
		f.offset, _ = strconv.ParseInt(parts[3], 10, 64)
	default:
		return f, false
	}
	f.path, f.hash = path, parts[1]
	var err error
	f.number, err = strconv.ParseInt(parts[2], 10, 64)
	return f, err == nil
}

// filesOf returns the output files of a process, oldest first.
func (o *Outputs) filesOf(hash string) []outputFile {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return nil
	}
	var found []outputFile
	for _, entry := range entries {
		if f, ok := parseOutput(filepath.Join(o.dir, entry.Name())); ok && f.hash == hash {
			found = append(found, f)
		}
	}
	slices.SortFunc(found, func(a, b outputFile) int { return cmp.Compare(a.number, b.number) })
	return found
}

// OutputQuery selects a part of the output of a process: after an offset of a file; without a
// file the output of the last time, or else the last lines.
type OutputQuery struct {
	Key    string
	File   string
	Offset int64
	Lines  int
	Age    time.Duration
	Log    bool // the log file of the process instead of its output
}

// OutputPage is a part of the output of a process.
type OutputPage struct {
	File    string // number of the start of the process, or of the log file; "" if there is no output
	Data    []byte
	Next    int64  // offset after Data
	More    bool   // there is more already
	Lost    bool   // output between the requested position and Data is gone
	Problem string // why there is no output, if more than that is known
}

// Read returns at most limit bytes of the output of a process.
func (o *Outputs) Read(q OutputQuery, limit int) (OutputPage, error) {
	files := o.filesOf(hashOf(q.Key))
	switch {
	case len(files) == 0:
		return OutputPage{}, nil
	case q.File == "" && q.Age > 0:
		at, offset := o.writtenAfter(files, time.Now().Add(-q.Age))
		return OutputPage{}.read(files, at, offset, limit)
	case q.File == "":
		return tail(files[len(files)-1], q.Lines, limit)
	}
	number, _ := strconv.ParseInt(q.File, 10, 64) // an invalid number is older than every file
	at := slices.IndexFunc(files, func(f outputFile) bool { return f.number >= number })
	if at < 0 {
		return OutputPage{File: q.File, Next: q.Offset}, nil
	}
	if files[at].number != number {
		return OutputPage{Lost: true}.read(files, at, files[at].offset, limit)
	}
	return OutputPage{}.read(files, at, q.Offset, limit)
}

// read reads from the offset of the file at, or from later files if it has nothing more.
func (page OutputPage) read(files []outputFile, at int, offset int64, limit int) (OutputPage, error) {
	for ; ; at++ {
		f := files[at]
		data, from, size, err := proc.ReadOutput(f.path, max(0, offset-f.offset), limit)
		if err != nil {
			return page, err
		}
		page.File, page.Data = strconv.FormatInt(f.number, 10), data
		page.Lost = page.Lost || from+f.offset > offset
		page.Next = f.offset + from + int64(len(data))
		page.More = page.Next < f.offset+size || at+1 < len(files)
		if len(data) > 0 || at+1 == len(files) {
			return page, nil
		}
		offset = files[at+1].offset
	}
}

// tail returns the last lines of a file.
func tail(f outputFile, lines, limit int) (OutputPage, error) {
	info, err := os.Lstat(f.path)
	if err != nil {
		return OutputPage{}, err
	}
	data, from, _, err := proc.ReadOutput(f.path, max(0, info.Size()-int64(limit)), limit)
	page := OutputPage{File: strconv.FormatInt(f.number, 10), Next: f.offset + from + int64(len(data))}
	page.Data = lastLines(data, lines)
	return page, err
}

// lastLines returns the last n lines of text; the last one may lack its line feed.
func lastLines(text []byte, n int) []byte {
	if n <= 0 {
		return nil
	}
	end := bytes.TrimSuffix(text, []byte("\n"))
	for range n {
		at := bytes.LastIndexByte(end, '\n')
		if at < 0 {
			return text
		}
		end = end[:at]
	}
	return text[len(end)+1:]
}
