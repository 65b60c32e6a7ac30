package proc

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// readPSS returns the private memory of the process in bytes. If the process has ended, it
// returns ErrGone.
func readPSS(id Identity) (int64, error) {
	h, err := openSame(id, 0)
	if err != nil {
		return 0, fmt.Errorf("private memory of %s: %w", id, err)
	}
	defer closeHandle(h)
	var memory processMemoryCounters
	memory.size = uint32(unsafe.Sizeof(memory))
	if err := callBool(procGetProcessMemoryInfo, uintptr(h), uintptr(unsafe.Pointer(&memory)), uintptr(memory.size)); err != nil {
		return 0, fmt.Errorf("private memory of %s: %w", id, err)
	}
	return int64(min(memory.workingSetSize, memory.privateUsage)), nil
}

// ReadHost reads the description of this host.
func ReadHost() (Host, error) {
	boot, err := bootID()
	if err != nil {
		return Host{}, err
	}
	memory := memoryStatus{}
	memory.size = uint32(unsafe.Sizeof(memory))
	if err := callBool(procGlobalMemoryStatusEx, uintptr(unsafe.Pointer(&memory))); err != nil {
		return Host{}, fmt.Errorf("read the memory size: %w", err)
	}
	_, offset := time.Now().Zone()
	return Host{
		BootID: boot, CPUs: onlineCPUs(), UTCOffset: time.Duration(offset) * time.Second,
		MemTotal: int64(memory.totalPhys), MemAvailable: int64(memory.availPhys >> 10),
	}, nil
}

// onlineCPUs counts all online CPUs of the host, including CPUs that the agent may not use.
func onlineCPUs() int {
	if n := windows.GetActiveProcessorCount(windows.ALL_PROCESSOR_GROUPS); n > 0 {
		return int(n)
	}
	return runtime.NumCPU()
}

// ReadCapacity returns the capacity of the whole host, without the limits of a job
// object around the agent.
func ReadCapacity() (Capacity, error) {
	host, err := ReadHost()
	return Capacity{CPUs: float64(host.CPUs), Memory: host.MemTotal}, err
}

// ReadCPUTime returns the CPU time of the host. The kernel time of Windows includes the
// idle time.
func ReadCPUTime() (CPUTime, error) {
	var idle, kernel, user windows.Filetime
	err := callBool(procGetSystemTimes, uintptr(unsafe.Pointer(&idle)), uintptr(unsafe.Pointer(&kernel)), uintptr(unsafe.Pointer(&user)))
	if err != nil {
		return CPUTime{}, fmt.Errorf("read the CPU time of the host: %w", err)
	}
	total := counted(kernel) + counted(user)
	return CPUTime{Busy: total - min(counted(idle), total), Total: total}, nil
}
