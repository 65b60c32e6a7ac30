package proc

import (
	"golang.org/x/sys/windows"
)

// What x/sys does not have.
var (
	kernel32                 = windows.NewLazySystemDLL("kernel32.dll")
	procGetProcessMemoryInfo = kernel32.NewProc("K32GetProcessMemoryInfo")
	procGlobalMemoryStatusEx = kernel32.NewProc("GlobalMemoryStatusEx")
	procGetSystemTimes       = kernel32.NewProc("GetSystemTimes")
	procGetOEMCP             = kernel32.NewProc("GetOEMCP")
	procRegisterWait         = kernel32.NewProc("RegisterWaitForSingleObject")
	procUnregisterWait       = kernel32.NewProc("UnregisterWaitEx")
)

// callBool calls a function that returns 0 when it fails. What its arguments
// point to stays where it is until it returns.
//
//go:uintptrescapes
func callBool(function *windows.LazyProc, args ...uintptr) error {
	if ok, _, err := function.Call(args...); ok == 0 {
		return err
	}
	return nil
}

// processMemoryCounters is PROCESS_MEMORY_COUNTERS_EX.
type processMemoryCounters struct {
	size, pageFaultCount                               uint32
	peakWorkingSetSize, workingSetSize                 uintptr
	quotaPeakPagedPoolUsage, quotaPagedPoolUsage       uintptr
	quotaPeakNonPagedPoolUsage, quotaNonPagedPoolUsage uintptr
	pagefileUsage, peakPagefileUsage                   uintptr
	privateUsage                                       uintptr
}

// memoryStatus is MEMORYSTATUSEX.
type memoryStatus struct {
	size, load                                       uint32
	totalPhys, availPhys                             uint64
	totalPageFile, availPageFile                     uint64
	totalVirtual, availVirtual, availExtendedVirtual uint64
}
