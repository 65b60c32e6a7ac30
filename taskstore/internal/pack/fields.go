package pack

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"

	"github.com/procfleet/procfleet"
)

var errDamaged = errors.New("pack: stored bytes are cut short or damaged")

// fields writes or reads the fields of a value in sequence. The same calls serve both
// directions, so that writer and reader cannot diverge. New fields may only be added at
// the end: missing fields at the end are read as zero.
type fields struct {
	reading bool
	out     []byte
	in      string // the input is a string, so that texts can share its memory
	err     error
}

func (f *fields) uint(v *uint64) {
	if !f.reading {
		f.out = binary.AppendUvarint(f.out, *v)
		return
	}
	*v = 0
	if f.in == "" {
		return
	}
	if c := f.in[0]; c < 1<<7 { // common case: one byte
		*v, f.in = uint64(c), f.in[1:]
		return
	}
	u, n := binary.Uvarint([]byte(f.in[:min(len(f.in), binary.MaxVarintLen64)]))
	if n <= 0 {
		f.fail()
		return
	}
	*v, f.in = u, f.in[n:]
}

func (f *fields) fail() {
	f.err = errDamaged
	f.in = ""
}

// num writes or reads a signed number in zigzag encoding.
func num[T ~int | ~int64](f *fields, v *T) {
	u := uint64(*v<<1) ^ uint64(int64(*v)>>63)
	f.uint(&u)
	if f.reading {
		*v = T(int64(u>>1) ^ -int64(u&1))
	}
}

func (f *fields) bool(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	f.uint(&u)
	*v = u == 1
}

func (f *fields) float(v *float64) {
	u := math.Float64bits(*v)
	f.uint(&u)
	*v = math.Float64frombits(u)
}

// text writes or reads a string, preceded by its length.
func text[T ~string](f *fields, v *T) {
	n := uint64(len(*v))
	f.uint(&n)
	if !f.reading {
		f.out = append(f.out, *v...)
		return
	}
	if n > uint64(len(f.in)) {
		f.fail()
		n = 0
	}
	*v = T(f.in[:n])
	f.in = f.in[n:]
}

func (f *fields) texts(v *[]string) {
	list(f, v)
	for i := range *v {
		text(f, &(*v)[i])
	}
}

func nums(f *fields, v *[]int) {
	list(f, v)
	for i := range *v {
		num(f, &(*v)[i])
	}
}

// list writes or reads the length of a list. When it reads, it allocates the list.
func list[T any](f *fields, v *[]T) {
	n := uint64(len(*v))
	f.uint(&n)
	if !f.reading {
		return
	}
	if n > uint64(len(f.in)) { // damaged: each element needs at least one byte
		f.fail()
		n = 0
	}
	*v = nil
	if n > 0 {
		*v = make([]T, n)
	}
}

var zeroSeconds = time.Time{}.Unix()

// time writes or reads a time with nanoseconds. It preserves the zero time and returns
// UTC.
func (f *fields) time(v *time.Time) {
	sec, nsec := v.Unix()-zeroSeconds, int64(v.Nanosecond())
	num(f, &sec)
	num(f, &nsec)
	switch {
	case !f.reading:
	case sec == 0 && nsec == 0:
		*v = time.Time{}
	default:
		*v = time.Unix(sec+zeroSeconds, nsec).UTC()
	}
}

func (f *fields) addr(v *netip.Addr) {
	var raw string
	if !f.reading {
		raw = string(v.AsSlice()) // without a zone, because addresses of hosts have none
	}
	text(f, &raw)
	if !f.reading {
		return
	}
	*v = netip.Addr{}
	if raw == "" {
		return
	}
	addr, ok := netip.AddrFromSlice([]byte(raw))
	if !ok {
		f.fail()
		return
	}
	*v = addr
}

func (f *fields) host(h *procfleet.Host) {
	num(f, &h.Cloud)
	f.addr(&h.Addr)
}

// part writes or reads nested fields, preceded by their length, so that fields can be
// added at their end too.
func (f *fields) part(list func(*fields)) {
	inner := fields{reading: f.reading}
	if f.reading {
		text(f, &inner.in)
		list(&inner)
		if inner.err != nil {
			f.fail()
		}
		return
	}
	list(&inner)
	raw := string(inner.out)
	text(f, &raw)
}
