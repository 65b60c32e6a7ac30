// Package packing writes and reads values as sequences of fields, for the packed records
// of the stores.
package packing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/procfleet/procfleet"
)

// ErrDamaged means that packed bytes cannot be parsed.
var ErrDamaged = errors.New("pack: stored bytes are cut short or damaged")

// Format is the version of the packed records, which is their first byte, and of the
// layouts of the stores.
const Format = 1

// CheckFormat returns an error that names both versions if what was found has another
// version than [Format].
func CheckFormat[N byte | uint64](what string, found N) error {
	if found == Format {
		return nil
	}
	return fmt.Errorf("%s has format %d, this procfleet reads format %d", what, found, Format)
}

// Fields writes or reads the fields of a value in sequence. The same calls serve both
// directions, so that writer and reader cannot diverge. New fields may only be added at
// the end: missing fields at the end are read as zero.
type Fields struct {
	Reading bool
	Out     []byte
	In      string // the input is a string, so that texts can share its memory
	Err     error
}

// Writing returns the fields of a new record. size is its expected number of bytes.
func Writing(size int) *Fields { return &Fields{Out: append(make([]byte, 0, size), Format)} }

// Reading returns the fields of a record that begins like those of [Writing]. The texts
// that are read share the memory of data.
func Reading(data string) (*Fields, error) {
	if data == "" {
		return nil, ErrDamaged
	}
	if err := CheckFormat("a stored record", data[0]); err != nil {
		return nil, err
	}
	return &Fields{Reading: true, In: data[1:]}, nil
}

// Uint writes or reads an unsigned number.
func (f *Fields) Uint(v *uint64) {
	if !f.Reading {
		f.Out = binary.AppendUvarint(f.Out, *v)
		return
	}
	*v = 0
	if f.In == "" {
		return
	}
	if c := f.In[0]; c < 1<<7 { // common case: one byte
		*v, f.In = uint64(c), f.In[1:]
		return
	}
	u, n := binary.Uvarint([]byte(f.In[:min(len(f.In), binary.MaxVarintLen64)]))
	if n <= 0 {
		f.Fail()
		return
	}
	*v, f.In = u, f.In[n:]
}

// Fail sets [ErrDamaged] and discards the rest of the input.
func (f *Fields) Fail() {
	f.Err = ErrDamaged
	f.In = ""
}

// Num writes or reads a signed number in zigzag encoding.
func Num[T ~int | ~int64](f *Fields, v *T) {
	u := uint64(*v<<1) ^ uint64(int64(*v)>>63)
	f.Uint(&u)
	if f.Reading {
		*v = T(int64(u>>1) ^ -int64(u&1))
	}
}

// Bool writes or reads a boolean.
func (f *Fields) Bool(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	f.Uint(&u)
	*v = u == 1
}

// Float writes or reads the bits of a number.
func (f *Fields) Float(v *float64) {
	u := math.Float64bits(*v)
	f.Uint(&u)
	*v = math.Float64frombits(u)
}

// Text writes or reads a string, preceded by its length.
func Text[T ~string](f *Fields, v *T) {
	n := uint64(len(*v))
	f.Uint(&n)
	if !f.Reading {
		f.Out = append(f.Out, *v...)
		return
	}
	if n > uint64(len(f.In)) {
		f.Fail()
		n = 0
	}
	*v = T(f.In[:n])
	f.In = f.In[n:]
}

// Texts writes or reads a list of strings.
func (f *Fields) Texts(v *[]string) {
	List(f, v)
	for i := range *v {
		Text(f, &(*v)[i])
	}
}

// Nums writes or reads a list of numbers.
func Nums(f *Fields, v *[]int) {
	List(f, v)
	for i := range *v {
		Num(f, &(*v)[i])
	}
}

// List writes or reads the length of a list. When it reads, it allocates the list.
func List[T any](f *Fields, v *[]T) {
	n := uint64(len(*v))
	f.Uint(&n)
	if !f.Reading {
		return
	}
	if n > uint64(len(f.In)) { // damaged: each element needs at least one byte
		f.Fail()
		n = 0
	}
	*v = nil
	if n > 0 {
		*v = make([]T, n)
	}
}

var zeroSeconds = time.Time{}.Unix()

// Time writes or reads a time with nanoseconds. It preserves the zero time and returns
// UTC.
func (f *Fields) Time(v *time.Time) {
	sec, nsec := v.Unix()-zeroSeconds, int64(v.Nanosecond())
	Num(f, &sec)
	Num(f, &nsec)
	switch {
	case !f.Reading:
	case sec == 0 && nsec == 0:
		*v = time.Time{}
	default:
		*v = time.Unix(sec+zeroSeconds, nsec).UTC()
	}
}

// Addr writes or reads an address, or the zero Addr.
func (f *Fields) Addr(v *netip.Addr) {
	var raw string
	if !f.Reading {
		raw = string(v.AsSlice()) // without a zone, because addresses of hosts have none
	}
	Text(f, &raw)
	if !f.Reading {
		return
	}
	*v = netip.Addr{}
	if raw == "" {
		return
	}
	addr, ok := netip.AddrFromSlice([]byte(raw))
	if !ok {
		f.Fail()
		return
	}
	*v = addr
}

// Host writes or reads a host.
func (f *Fields) Host(h *procfleet.Host) {
	Num(f, &h.Cloud)
	f.Addr(&h.Addr)
}

// Part writes or reads nested fields, preceded by their length, so that fields can be
// added at their end too.
func (f *Fields) Part(fields func(*Fields)) {
	inner := Fields{Reading: f.Reading}
	if f.Reading {
		Text(f, &inner.In)
		fields(&inner)
		if inner.Err != nil {
			f.Fail()
		}
		return
	}
	fields(&inner)
	raw := string(inner.Out)
	Text(f, &raw)
}

// HasLastExit writes or reads whether a value has a LastExit. When it reads one, it
// allocates it.
func HasLastExit(f *Fields, v **procfleet.LastExit) bool {
	there := *v != nil
	f.Bool(&there)
	if there && f.Reading {
		*v = new(procfleet.LastExit)
	}
	return there
}

// LastExit writes or reads all fields of a LastExit except the time.
func LastExit(f *Fields, e *procfleet.LastExit) {
	f.Bool(&e.Known)
	Num(f, &e.Code)
	Text(f, &e.Signal)
	Text(f, &e.Why)
}
