package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

const reserveName = "reserve"

// errNoSpace is wrapped if the disk is full.
var errNoSpace = errors.New("no space")

// ensureReserve creates the disk reserve for urgent changes if it is missing. It returns an
// error only if the disk is full. Other errors are logged; the next change fails with the
// same error.
func (j *Journal) ensureReserve() error {
	if j.limits.reserveBytes == 0 {
		return nil
	}
	err := j.fillReserve(filepath.Join(j.dir, reserveName))
	j.noReserve = nil
	if err == nil {
		return nil
	}
	if !noSpace(err) {
		j.log.WithError(err).Warn("disk reserve missing")
		return nil
	}
	j.noReserve = full(err)
	return j.noReserve
}

func full(err error) error { return fmt.Errorf("%w: %w", errNoSpace, err) }

func (j *Journal) fillReserve(name string) error {
	f, err := j.disk.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err == nil && size == j.limits.reserveBytes {
		return f.Close()
	}
	filling := make([]byte, j.limits.reserveBytes)
	// Zeros would reserve nothing on a disk that compresses.
	_, _ = rand.NewChaCha8([32]byte{}).Read(filling) // never fails
	if err == nil {
		_, err = f.WriteAt(filling, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, j.disk.Remove(name))
	}
	return nil
}

// releaseReserve removes the disk reserve and reports whether it existed.
func (j *Journal) releaseReserve(cause error) bool {
	if j.limits.reserveBytes == 0 || j.noReserve != nil {
		return false
	}
	if err := j.disk.Remove(filepath.Join(j.dir, reserveName)); err != nil {
		return false
	}
	j.noReserve = full(cause)
	j.log.WithError(cause).Error("disk full: using the reserve, operations refused")
	return true
}
