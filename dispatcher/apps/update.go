package apps

import (
	"fmt"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Update changes the file at a path, which is made if it is missing; see
// [datafile.Update]. If change returns an error nothing is written.
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
		if _, err := Parse(path, text); err != nil { // what no dispatcher would read is not written
			return nil, fmt.Errorf("the new file would not be understood: %w", err)
		}
		return text, nil
	})
}
