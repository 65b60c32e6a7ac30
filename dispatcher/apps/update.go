package apps

import (
	"fmt"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Update applies change to the file at a path and writes the result. It creates the
// file if it is missing. If change returns an error, Update writes nothing and returns
// that error; see [datafile.Update].
func Update(path string, change func(*File) error) error {
	return datafile.Update(path, maxFile, func(text []byte) ([]byte, error) {
		file, err := Parse(path, text)
		if err != nil {
			return nil, err
		}
		if err := change(file); err != nil {
			return nil, err
		}
		if text, err = file.text(); err != nil {
			return nil, err
		}
		if _, err := Parse(path, text); err != nil { // never write a file that a dispatcher would reject
			return nil, fmt.Errorf("the new file would not be understood: %w", err)
		}
		return text, nil
	})
}
