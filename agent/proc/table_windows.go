package proc

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// ReadTable reads the stat of every process of the host by one system call.
func ReadTable() (*Table, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	stats, err := readStats()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	relate(stats, os.Getpid())
	return &Table{boot: boot, stats: stats}, nil
}

// readPIDs returns the pids of all processes except the kernel's.
func readPIDs() ([]int, error) {
	stats, err := readStats()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	pids := make([]int, 0, len(stats))
	for _, st := range stats {
		if !st.Kernel {
			pids = append(pids, st.PID)
		}
	}
	return pids, nil
}

// readStats repeats the call while the table grows faster than the buffer.
func readStats() ([]Stat, error) {
	for size := uint32(256 << 10); ; {
		buf := make([]uint64, size/8) // the records hold 64 bit numbers
		var needed uint32
		err := windows.NtQuerySystemInformation(windows.SystemProcessInformation, unsafe.Pointer(&buf[0]), size, &needed)
		switch {
		case err == nil:
			return parseRecords(unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), len(buf)*8)), nil
		case !errors.Is(err, windows.STATUS_INFO_LENGTH_MISMATCH):
			return nil, err
		}
		size = (max(needed, size) + 64<<10) &^ 7
	}
}

// parseRecords reads a chain of records of varying length.
func parseRecords(buf []byte) []Stat {
	var stats []Stat
	for {
		record := (*windows.SYSTEM_PROCESS_INFORMATION)(unsafe.Pointer(&buf[0]))
		if pid := int(record.UniqueProcessID); pid != idlePid {
			stats = append(stats, Stat{
				PID: pid, PPID: int(record.InheritedFromUniqueProcessID), Session: pid, Comm: record.ImageName.String(),
				State: 'R', Kernel: pid == systemPid, Threads: int(record.NumberOfThreads),
				Start: uint64(max(record.CreateTime-epoch, 0)), UTime: uint64(record.UserTime), STime: uint64(record.KernelTime),
				RSSPages: int64(record.WorkingSetSize) / int64(os.Getpagesize()),
			})
		}
		if record.NextEntryOffset == 0 {
			return stats
		}
		buf = buf[record.NextEntryOffset:]
	}
}

// group returns the descendants of a command's leader: Windows has no process groups.
// Processes whose parent has ended are missing.
func (t *Table) group(leader Identity) []Stat { return t.Tree(leader) }

// session returns the same processes as group: a session of Windows has all processes of a
// user.
func (t *Table) session(leader Identity) []Stat { return t.Tree(leader) }
