package proc

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// OutputHeld reports whether any process has the file open: then it cannot be
// opened without letting others have it. When that cannot be told the answer is
// true, so that nothing in use is removed. A missing file is not held.
func OutputHeld(path string) bool {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return false
	}
	const alone = 0
	h, err := windows.CreateFile(name, windows.GENERIC_READ, alone, nil, windows.OPEN_EXISTING, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err == nil {
		closeHandle(h)
		return false
	}
	return !errors.Is(err, os.ErrNotExist)
}

// decodeOutput makes UTF-8 of what programs write to a console of this host.
func decodeOutput(text []byte, cut bool) []byte {
	page, _, _ := procGetOEMCP.Call() // cannot fail
	return decodeCodePage(uint32(page), text, cut)
}
