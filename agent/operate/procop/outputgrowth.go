package procop

import (
	"os"
	"slices"
	"sync"
	"time"
)

// maxSamples bounds the memory of a growth: a day at one sample per minute.
const maxSamples = 24 * 60

// growth records the sizes of an output file over time, to find what was written since a time.
type growth struct {
	mu      sync.Mutex
	samples []sizeSample // oldest first
}

type sizeSample struct {
	at   time.Time
	size int64
}

func (g *growth) record(path string) {
	info, err := os.Lstat(path)
	if err != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.samples) == maxSamples {
		g.samples = slices.Delete(g.samples, 0, 1)
	}
	g.samples = append(g.samples, sizeSample{time.Now(), info.Size()})
}

// at returns the size of the file at a time, or at the last sample before it. It is 0 if
// there was none.
func (g *growth) at(moment time.Time) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range slices.Backward(g.samples) {
		if !s.at.After(moment) {
			return s.size
		}
	}
	return 0
}

// writtenAfter returns the first of the files that was written to after a time, and the offset
// of what was written then. The offset is too small by what was written between two samples, or
// before the first one. If none was written to, the offset is at the end of the last file.
func (o *Outputs) writtenAfter(files []outputFile, moment time.Time) (at int, offset int64) {
	for at, f := range files {
		info, err := os.Lstat(f.path)
		if err != nil || !info.ModTime().After(moment) {
			if err == nil {
				offset = f.offset + info.Size()
			}
			continue
		}
		if value, inUse := o.inUse.Load(f.path); inUse {
			if g, ok := value.(*growth); ok {
				return at, f.offset + g.at(moment)
			}
		}
		return at, f.offset
	}
	return len(files) - 1, offset
}
