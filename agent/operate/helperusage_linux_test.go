package operate

import (
	"flag"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// uses are the flags for the resource usage of a demo.
type uses struct {
	busy    *bool // use a CPU
	hold    *int  // private memory, MB
	shared  *int  // memory shared with the workers, MB
	workers *int
	each    *int // private memory of each worker, MB
	given   *int // memory shared by the parent, MB
	greedy  *string
}

func usageFlags(flags *flag.FlagSet) uses {
	return uses{
		busy: flags.Bool("busy", false, "use a CPU"), hold: flags.Int("hold", 0, "MB of memory to use"),
		shared:  flags.Int("shared", 0, "MB of memory to share with the workers"),
		workers: flags.Int("workers", 0, "children to start"), each: flags.Int("each", 0, "MB of memory that each uses"),
		given:  flags.Int("given", 0, "MB of memory to share with the parent"),
		greedy: flags.String("greedy", "", "file upon which to use 2 GB"),
	}
}

// taken references the allocated memory, so that it is not freed.
var taken [][]byte

func (u uses) start() {
	if *u.busy {
		go func() {
			for {
				_ = strings.Repeat("busy", 1000)
			}
		}()
	}
	if *u.greedy != "" {
		go devour(*u.greedy)
	}
	if *u.given > 0 {
		taken = append(taken, mapShared(os.NewFile(3, "shared"), *u.given<<20))
	}
	taken = append(taken, touched(make([]byte, *u.hold<<20)))
	args := []string{"-hold", strconv.Itoa(*u.each)}
	var files []*os.File
	if *u.shared > 0 {
		file := sharedFile(*u.shared << 20)
		files = append(files, file)
		taken = append(taken, mapShared(file, *u.shared<<20))
		args = append(args, "-given", strconv.Itoa(*u.shared))
	}
	self, _ := os.Executable()
	for range *u.workers {
		cmd := exec.Command(self, args...)
		cmd.ExtraFiles = files
		if cmd.Start() != nil {
			os.Exit(1)
		}
	}
}

// devour allocates memory once the file exists.
func devour(file string) {
	for {
		if _, err := os.Stat(file); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	var all [][]byte
	for range 200 {
		all = append(all, touched(make([]byte, 10<<20)))
	}
	runtime.KeepAlive(all)
}

// touched writes to every page, so that the memory is resident, and returns the memory.
func touched(memory []byte) []byte {
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	return memory
}

func sharedFile(size int) *os.File {
	file, err := os.CreateTemp("", "demo")
	if err != nil || os.Remove(file.Name()) != nil || file.Truncate(int64(size)) != nil {
		os.Exit(1)
	}
	return file
}

func mapShared(file *os.File, size int) []byte {
	memory, err := syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		os.Exit(1)
	}
	return touched(memory)
}
