package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"time"
)

// format is the version of the files. A program refuses files of another format.
const format = 1

// maxRecord bounds the JSON of a record, in bytes. Operations are far smaller: they arrive
// in messages of at most 1 MiB.
const maxRecord = 4 << 20

// frameHeader is the size, in bytes, of the header of a record: the length and the CRC-32C
// of its JSON, both little endian.
const frameHeader = 8

// errBadRecord is wrapped if bytes are not an intact record.
var errBadRecord = errors.New("not a valid record")

// record is one entry of a file. Apart from Group exactly one field is set.
type record struct {
	// Group is the number of the fsync that made the record durable. It must remain the
	// first field: [intactRecords] searches for its text.
	Group uint64 `json:"n"`

	Head *head `json:"head,omitempty"` // first record of every file
	// Records of logs and snapshots:
	Received  *Op       `json:"received,omitempty"`
	Executing *execMark `json:"executing,omitempty"`
	Done      *done     `json:"done,omitempty"`
	Acked     []ID      `json:"acked,omitempty"`
	Process   *process  `json:"process,omitempty"`
	// Records of snapshots only. A log needs no fence records, since its received records
	// contain the fences.
	Fence *fenceMark `json:"fence,omitempty"`
	End   *end       `json:"end,omitempty"` // last record of every snapshot
}

type head struct {
	Format     int     `json:"format"`
	Generation int     `json:"generation"`
	Damage     *damage `json:"damage,omitempty"` // last damage of the journal; nil = none
	// Floor is the highest removed fence: a command for a process without a fence may have
	// been executed before if its fence is not above the floor.
	Floor int64 `json:"floor,omitempty"`
}

// damage records a loss of durable records.
type damage struct {
	ID string `json:"id"`
	// Fence is the highest intact fence. Records of commands with the same or a lower fence
	// may be lost.
	Fence int64 `json:"fence"`
}

type execMark struct {
	ID
	Exec Exec `json:"exec"`
}

// done records the end of an operation and replaces its received record.
type done struct {
	ID
	Lane   string          `json:"lane"`
	Trace  string          `json:"trace,omitempty"`
	Action string          `json:"action,omitempty"`
	Fence  int64           `json:"fence,omitempty"`
	At     time.Time       `json:"at"`
	Code   int             `json:"code"`
	Reason string          `json:"reason"`
	Result json.RawMessage `json:"result"`
}

type process struct {
	Key   string          `json:"key"`
	State json.RawMessage `json:"state,omitempty"` // empty = the process was removed
}

type fenceMark struct {
	Key   string `json:"key"`
	Fence int64  `json:"fence"`
	Item  int    `json:"item"`
}

// compare compares the mark with (fence, item): +1 = the mark is newer.
func (m fenceMark) compare(fence int64, item int) int {
	return cmp.Or(cmp.Compare(m.Fence, fence), cmp.Compare(m.Item, item))
}

type end struct {
	Records int `json:"records"` // number of records before the end record
}

func castagnoli(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}

// appendFrame appends a record's JSON with its length and checksum.
func appendFrame(buf, payload []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(payload))) //nolint:gosec // a record is bounded well below
	buf = binary.LittleEndian.AppendUint32(buf, castagnoli(payload))
	return append(buf, payload...)
}

func encodeRecord(r *record) ([]byte, error) {
	payload, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	if len(payload) > maxRecord {
		return nil, fmt.Errorf("record of %d bytes is over the limit of %d", len(payload), maxRecord)
	}
	return payload, nil
}

func decodeRecord(payload []byte) (*record, error) {
	var r record
	if err := json.Unmarshal(payload, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadRecord, err)
	}
	return &r, nil
}

// readFrame reads one record's JSON, into buf if buf is large enough. It returns io.EOF at
// the end of r and errBadRecord if the next bytes are not an intact record.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: cut short", errBadRecord)
		}
		return nil, err
	}
	size := binary.LittleEndian.Uint32(header[:])
	if size < 2 || size > maxRecord {
		return nil, fmt.Errorf("%w: length %d", errBadRecord, size)
	}
	payload := slices.Grow(buf[:0], int(size))[:size]
	if _, err := io.ReadFull(r, payload); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: cut short", errBadRecord)
		}
		return nil, err
	}
	if castagnoli(payload) != binary.LittleEndian.Uint32(header[4:]) {
		return nil, fmt.Errorf("%w: checksum differs", errBadRecord)
	}
	return payload, nil
}

// scan calls each with every record of r and the offset and size of the record's JSON. It
// returns the offset after the last valid record, and errBadRecord if r has more bytes
// after that offset.
func scan(r io.Reader, each func(rec *record, off int64, size int) error) (int64, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	var payload []byte
	for off := int64(0); ; {
		var err error
		payload, err = readFrame(in, payload) // decodeRecord copies the bytes, so the buffer is reused
		if errors.Is(err, io.EOF) {
			return off, nil
		}
		if err != nil {
			return off, fmt.Errorf("at offset %d: %w", off, err)
		}
		rec, err := decodeRecord(payload)
		if err != nil {
			return off, fmt.Errorf("at offset %d: %w", off, err)
		}
		if err := each(rec, off+frameHeader, len(payload)); err != nil {
			return off, fmt.Errorf("at offset %d: %w", off, err)
		}
		off += frameHeader + int64(len(payload))
	}
}

// recordMarker is the beginning of the JSON of every record.
var recordMarker = []byte(`{"n":`)

// intactRecords yields the intact records in data, at any offset, and their positions.
func intactRecords(data []byte) iter.Seq2[ref, *record] {
	return func(yield func(ref, *record) bool) {
		for off := 0; off < len(data); {
			payload, err := readFrame(bytes.NewReader(data[off:]), nil)
			if err != nil {
				marker := bytes.Index(data[min(off+1+frameHeader, len(data)):], recordMarker)
				if marker < 0 {
					return
				}
				off += 1 + marker // the next possible record
				continue
			}
			rec, err := decodeRecord(payload)
			if err == nil && !yield(ref{off: int64(off) + frameHeader, size: len(payload)}, rec) {
				return
			}
			off += frameHeader + len(payload)
		}
	}
}
