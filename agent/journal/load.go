package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// load reads the newest generation, the previous generation if the newest snapshot is
// damaged, or else the intact records of all files. It prepares the journal for changes.
func (j *Journal) load() error {
	if err := j.disk.MkdirAll(j.dir); err != nil {
		return err
	}
	names, err := j.disk.List(j.dir)
	if err != nil {
		return err
	}
	logs, snapshots := generations(names, logPrefix), generations(names, snapshotPrefix)
	if len(logs) == 0 && len(snapshots) == 0 {
		return j.beginFirst()
	}
	if err := j.checkFormat(names); err != nil {
		return err
	}
	bases := snapshots
	if len(logs) == 0 || logs[0] == 1 {
		bases = append([]int{0}, snapshots...) // the first log has no snapshot
	}
	err = fmt.Errorf("%w: no snapshot that the logs follow", ErrDamaged)
	for _, base := range slices.Backward(bases) {
		if err = j.loadFrom(base, logs); err == nil || !errors.Is(err, ErrDamaged) {
			j.base = base
			return err
		}
		j.log.WithError(err).WithField("generation", base).Error("journal generation damaged, trying the previous one")
		_ = j.closeSegments() // opened for reading only
	}
	if err = j.salvage(logs, snapshots, err); err == nil {
		return nil
	}
	return fmt.Errorf("%w. Nothing was changed. Check which processes run on this host, "+
		"then rename the folder and restart the agent to begin a new journal", err)
}

// Exists reports whether dir contains a log or a snapshot, intact or damaged.
func Exists(dir string) (bool, error) {
	names, err := osDisk{}.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(generations(names, logPrefix)) > 0 || len(generations(names, snapshotPrefix)) > 0, err
}

// generations returns the sorted generation numbers of the files whose names have the prefix.
func generations(names []string, prefix string) []int {
	var found []int
	for _, name := range names {
		if p, n, ok := parseName(name); ok && p == prefix {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found
}

func (j *Journal) beginFirst() error {
	s, err := j.newLog(1)
	if err != nil {
		return err
	}
	j.segments = append(j.segments, s)
	j.current, j.generation = s, 1
	j.synced++
	return nil
}

// checkFormat returns [ErrFormat] if the head of any file has another format.
func (j *Journal) checkFormat(names []string) error {
	for _, name := range names {
		if _, _, ok := parseName(name); !ok {
			continue
		}
		name = filepath.Join(j.dir, name)
		f, err := j.disk.Open(name, os.O_RDONLY)
		if err != nil {
			return err
		}
		payload, err := readFrame(io.NewSectionReader(f, 0, frameHeader+maxRecord), nil)
		_ = f.Close() // opened for reading only
		if err != nil {
			continue // torn or damaged: handled when the file is loaded
		}
		var rec record
		if json.Unmarshal(payload, &rec) == nil && rec.Head != nil && rec.Head.Format != format {
			return fmt.Errorf("%w: %s has format %d, this agent reads format %d. Nothing was changed. Install the agent again that wrote the journal",
				ErrFormat, name, rec.Head.Format, format)
		}
	}
	return nil
}

// loadFrom builds the index from the snapshot of generation base (0 = none) and all logs of
// later or the same generation.
func (j *Journal) loadFrom(base int, logs []int) error {
	j.index, j.synced = newIndex(), 0
	if base > 0 {
		if err := j.loadSnapshot(base); err != nil {
			return err
		}
	}
	from, next := slices.Index(logs, max(base, 1)), max(base, 1)
	if from < 0 {
		return fmt.Errorf("%w: %s is missing", ErrDamaged, j.path(logPrefix, next))
	}
	for i, n := range logs[from:] {
		if n != next {
			return fmt.Errorf("%w: %s is missing", ErrDamaged, j.path(logPrefix, next))
		}
		next++
		if err := j.loadLog(n, from+i == len(logs)-1); err != nil {
			return err
		}
	}
	return nil
}

func (j *Journal) loadSnapshot(generation int) error {
	s, err := j.openSegment(j.path(snapshotPrefix, generation), os.O_RDONLY)
	if err != nil {
		return err
	}
	records, whole := 0, false
	s.size, err = j.replay(s, func(rec *record) error {
		if whole {
			return fmt.Errorf("%w: records after the end", errBadRecord)
		}
		if rec.End != nil {
			whole = rec.End.Records == records
		}
		records++
		return nil
	})
	if err == nil && !whole {
		err = fmt.Errorf("%w: incomplete", errBadRecord)
	}
	if errors.Is(err, errBadRecord) {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, s.name, err)
	}
	return err
}

// replay calls also and index.apply with all valid records of a segment, and returns the
// offset after the last one.
func (j *Journal) replay(s *segment, also func(*record) error) (int64, error) {
	size, err := s.file.Size()
	if err != nil {
		return 0, err
	}
	return scan(io.NewSectionReader(s.file, 0, size), func(rec *record, off int64, size int) error {
		if err := also(rec); err != nil {
			return err
		}
		j.synced = max(j.synced, rec.Group)
		return j.index.apply(rec, ref{segment: s, off: off, size: size})
	})
}

func (j *Journal) loadLog(generation int, last bool) error {
	flag := os.O_RDONLY
	if last {
		flag = os.O_RDWR
	}
	s, err := j.openSegment(j.path(logPrefix, generation), flag)
	if err != nil {
		return err
	}
	var bad error
	s.size, bad = j.replay(s, func(rec *record) error {
		if rec.Head != nil && rec.Group > j.synced+1 {
			return fmt.Errorf("%w: %s: groups %d to %d of the log before are missing", ErrDamaged, s.name, j.synced+1, rec.Group-1)
		}
		return nil
	})
	if bad != nil && !errors.Is(bad, errBadRecord) {
		return bad
	}
	if bad != nil {
		if err := j.checkTail(s, bad); err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	j.current, j.generation = s, generation
	if bad != nil {
		if err := j.cutTail(s, bad); err != nil {
			return err
		}
	}
	if s.size == 0 { // the program crashed before it wrote the head
		return j.begin(s, generation)
	}
	// The agent acts on these records, so they must be durable even if the program that
	// wrote them crashed before its fsync.
	return s.file.Sync()
}

// checkTail returns ErrDamaged if records in the invalid end of a log were durable. Records
// that were never durable are expected there: a crash may tear the records of the last
// group, and records written without an fsync before it, in any order. A group is written
// only when the records before it are durable, so a record of a later group proves damage.
func (j *Journal) checkTail(s *segment, bad error) error {
	tail, err := readTail(s)
	if err != nil {
		return err
	}
	for _, rec := range intactRecords(tail) {
		if rec.Group > j.synced+1 {
			return fmt.Errorf("%w: %s %w, and valid records follow", ErrDamaged, s.name, bad)
		}
	}
	if s.size == 0 && len(tail) > longestHead { // the head was durable before a record was appended
		return fmt.Errorf("%w: %s %w, and more data follows", ErrDamaged, s.name, bad)
	}
	return nil
}

// longestHead bounds the size of a log's first record, in bytes.
const longestHead = 256

// cutTail copies the torn end of a log to another file and truncates the log to its valid
// records.
func (j *Journal) cutTail(s *segment, bad error) error {
	tail, err := readTail(s)
	if err != nil {
		return err
	}
	fields := j.log.WithError(bad).WithField("bytes", len(tail))
	copied := filepath.Join(j.dir, badPrefix+j.now().UTC().Format(badTime))
	if err := j.copyTail(copied, tail); err != nil {
		// A full disk must not prevent the start of the agent. The bytes were never
		// reported as durable.
		fields = fields.WithField("copy_error", err.Error())
	} else {
		fields = fields.WithField("copy", copied)
	}
	fields.Warn("journal truncated after a torn write")
	if err := j.recordMaybeExecuted(); err != nil {
		j.log.WithError(err).Warn("journal not writable yet")
		return nil
	}
	if err := s.file.Truncate(s.size); err != nil {
		return err
	}
	return s.file.Sync()
}

func (j *Journal) copyTail(name string, data []byte) error {
	f, err := j.disk.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// recovered returns the open operations, unacknowledged results and processes of the index.
func (j *Journal) recovered() (Recovered, error) {
	r := Recovered{Processes: make(map[string]json.RawMessage, len(j.index.processes)), Damage: j.damage}
	if r.Damage == nil && j.index.damage != nil {
		r.Damage = &Damage{ID: j.index.damage.ID}
	}
	for key, at := range j.index.processes {
		rec, err := at.read()
		if err != nil {
			return Recovered{}, err
		}
		r.Processes[key] = rec.Process.State
	}
	for _, id := range j.index.inOrder() {
		e := j.index.ops[id]
		switch {
		case !e.finished:
			op, err := e.readOpen()
			if err != nil {
				return Recovered{}, err
			}
			r.Open = append(r.Open, op)
		case !e.acked:
			r.Unacknowledged = append(r.Unacknowledged, FinishedOp{ID: id, Lane: e.lane, Trace: e.trace})
		}
	}
	return r, nil
}

func (e *entry) readOpen() (OpenOp, error) {
	rec, err := e.received.read()
	if err != nil {
		return OpenOp{}, err
	}
	op := OpenOp{Op: *rec.Received}
	if e.maybeExecuted {
		op.Executing, op.Exec = true, Exec{At: op.AcceptedAt}
		return op, nil
	}
	if e.executing.zero() {
		return op, nil
	}
	if rec, err = e.executing.read(); err != nil {
		return OpenOp{}, err
	}
	op.Executing, op.Exec = true, rec.Executing.Exec
	return op, nil
}
