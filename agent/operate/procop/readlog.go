package procop

import (
	"fmt"
	"os"
	"strconv"

	"github.com/procfleet/procfleet/agent/proc"
)

// ReadLog returns at most limit bytes of the open log file of a process: after an offset, or
// the last lines. If the file is not that of the query, because it was rotated, the page begins
// with the new file.
func ReadLog(file *os.File, q OutputQuery, limit int) (OutputPage, error) {
	number, err := proc.FileNumber(file)
	if err != nil {
		return OutputPage{}, fmt.Errorf("read log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return OutputPage{}, fmt.Errorf("read log: %w", err)
	}
	page := OutputPage{File: strconv.FormatInt(number, 10)}
	offset := q.Offset
	switch {
	case q.File == "":
		offset = max(0, info.Size()-int64(limit))
	case q.File != page.File || offset > info.Size():
		page.Lost, offset = true, 0
	}
	data, from, size, err := proc.ReadPart(file, offset, limit)
	page.Next = from + int64(len(data))
	page.More = page.Next < size
	if page.Data = data; q.File == "" {
		page.Data = lastLines(data, q.Lines)
	}
	return page, err
}
