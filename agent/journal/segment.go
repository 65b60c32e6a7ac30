package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// segment is one open file of the journal.
type segment struct {
	file file
	name string // full path
	size int64  // size of the valid records, in bytes
}

// ref is the position of a record's JSON in a file.
type ref struct {
	segment *segment
	off     int64
	size    int
}

func (r ref) zero() bool { return r.segment == nil }

// payload reads the JSON of the record and verifies its checksum.
func (r ref) payload() ([]byte, error) {
	frame := make([]byte, frameHeader+r.size)
	_, err := r.segment.file.ReadAt(frame, r.off-frameHeader)
	if err != nil {
		return nil, fmt.Errorf("read %s at offset %d: %w", r.segment.name, r.off, err)
	}
	payload, err := readFrame(bytes.NewReader(frame), nil)
	if err != nil {
		return nil, fmt.Errorf("read %s at offset %d: %w", r.segment.name, r.off, err)
	}
	return payload, nil
}

func (r ref) read() (*record, error) {
	payload, err := r.payload()
	if err != nil {
		return nil, err
	}
	return decodeRecord(payload)
}

const (
	logPrefix      = "log-"
	snapshotPrefix = "snapshot-"
	badPrefix      = "journal.bad-"
	tmpSuffix      = ".tmp"
)

func (j *Journal) path(prefix string, generation int) string {
	return filepath.Join(j.dir, fmt.Sprintf("%s%06d", prefix, generation))
}

// parseName returns the prefix and the generation in the name of a log or snapshot; false
// for any other name.
func parseName(name string) (prefix string, generation int, ok bool) {
	for _, prefix := range []string{logPrefix, snapshotPrefix} {
		if text, ok := strings.CutPrefix(name, prefix); ok {
			n, err := strconv.Atoi(text)
			return prefix, n, err == nil && n > 0
		}
	}
	return "", 0, false
}

func (j *Journal) openSegment(name string, flag int) (*segment, error) {
	f, err := j.disk.Open(name, flag)
	if err != nil {
		return nil, err
	}
	s := &segment{file: f, name: name}
	j.segments = append(j.segments, s)
	return s, nil
}

// newLog creates the log of a generation, which contains only its head and is durable.
func (j *Journal) newLog(generation int) (*segment, error) {
	name := j.path(logPrefix, generation)
	f, err := j.disk.Open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	s := &segment{file: f, name: name}
	if err := j.begin(s, generation); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

func (j *Journal) head(generation int) *head {
	return &head{Format: format, Generation: generation, Damage: j.index.damage, Floor: j.index.floor}
}

// begin writes the head of an empty log and makes it durable.
func (j *Journal) begin(s *segment, generation int) error {
	payload, err := encodeRecord(&record{Group: j.synced + 1, Head: j.head(generation)})
	if err != nil {
		return err
	}
	frame := appendFrame(nil, payload)
	if _, err := s.file.WriteAt(frame, 0); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.size = int64(len(frame))
	return j.disk.SyncDir(j.dir)
}
