package dialect

import (
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// What is rendered by hand must be what encoding/json makes of the struct that
// declares the shape, with every member set, with none, and with one at a time.
func TestRenderedMembersAreThoseThatAreDeclared(t *testing.T) {
	t.Parallel()
	t.Run("content", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(c *content) rendered { return c.render(nil) })
	})
	t.Run("value", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(v *contentValue) rendered { return v.render(nil) })
	})
	t.Run("instance", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(i *contentInstance) rendered { return i.render(nil) })
	})
	t.Run("ext", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(e *contentExt) rendered { return e.render(nil) })
	})
	t.Run("result", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(n *v1.Result) rendered { return renderResult(nil, n) })
	})
	t.Run("status", func(t *testing.T) {
		t.Parallel()
		sameAsDeclared(t, func(s *procfleet.ProcessStatus) rendered { return renderStatus(nil, s) })
	})
}

func sameAsDeclared[T any](t *testing.T, render func(*T) rendered) {
	t.Helper()
	values := []T{*new(T), *new(T)}
	set(t, reflect.ValueOf(&values[1]).Elem())
	for i := range reflect.TypeFor[T]().NumField() {
		var one T
		set(t, reflect.ValueOf(&one).Elem().Field(i))
		values = append(values, one)
	}
	for i := range values {
		want, err := appendJSON(nil, values[i])
		if err != nil {
			t.Fatal(err)
		}
		if got := render(&values[i]); string(got) != string(want) {
			t.Errorf("rendered %s\ndeclared %s", got, want)
		}
	}
}

// set gives v and everything in it a value that is not zero.
func set(t *testing.T, v reflect.Value) {
	t.Helper()
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Date(2026, 11, 21, 5, 35, 22, 123_400_000, time.UTC)))
		return
	}
	if v.Type() == reflect.TypeFor[procfleet.Host]() {
		v.Set(reflect.ValueOf(procfleet.Host{Cloud: 3, Addr: netip.MustParseAddr("fd00::1")}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(`a "text" of ` + v.Type().Name())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-4437)
	case reflect.Float64:
		v.SetFloat(12.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		set(t, v.Index(0))
		set(t, v.Index(1))
	case reflect.Struct:
		for _, field := range v.Fields() {
			set(t, field)
		}
	default:
		t.Fatalf("no value for a %v", v.Type())
	}
}

func FuzzRenderedText(f *testing.F) {
	for _, s := range []string{
		"", "plain", `"\`, "\x00\b\f\n\r\t\x1f\x7f", "<&>", "é 世界 😀", "\u2028\u2029\ufffd", "\xff", "\xe4\xb8", "a\xf0\x9f\x98", "\xed\xa0\x80",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := appendJSON(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		if got := rendered(nil).quote(s); string(got) != string(want) {
			t.Errorf("%q is rendered %s, want %s", s, got, want)
		}
		inside, err := appendJSON([]byte("before"), string(want))
		if err != nil {
			t.Fatal(err)
		}
		if got := rendered("before").quote(s).quoteFrom(len("before")); string(got) != string(inside) {
			t.Errorf("%q within a text is rendered %s, want %s", s, got, inside)
		}
	})
}

func FuzzRenderedFloat(f *testing.F) {
	for _, v := range []float64{0, math.Copysign(0, -1), 1, -1.5, 1e-6, 9e-7, 1e-7, 1.5e-12, 1e20, 1e21, 1e100, math.MaxFloat64, math.SmallestNonzeroFloat64} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return // encoding/json refuses what is null here
		}
		want, err := appendJSON(nil, map[string]float64{"v": v})
		if err != nil {
			t.Fatal(err)
		}
		if got := append(rendered("{").float("v", v), '}'); string(got) != string(want) {
			t.Errorf("rendered %s, want %s", got, want)
		}
	})
}
