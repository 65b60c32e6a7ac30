package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

const reserveName = "reserve"

// errNoSpace is wrapped when the disk is full.
var errNoSpace = errors.New("no space")

// holdRoom sees to it that the disk has room set aside for changes that must
// not fail. An error says that the disk is full; one that cannot be written
// for another reason shows that with the next change.
func (j *Journal) holdRoom() error {
	if j.limits.reserveBytes == 0 {
		return nil
	}
	err := j.fillReserve(filepath.Join(j.dir, reserveName))
	j.spent = nil
	if err == nil {
		return nil
	}
	if !noSpace(err) {
		j.log.WithError(err).Warn("disk reserve missing")
		return nil
	}
	j.spent = full(err)
	return j.spent
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
	room := make([]byte, j.limits.reserveBytes)
	// What compresses to nothing would hold no room on some disks.
	_, _ = rand.NewChaCha8([32]byte{}).Read(room) // never fails
	if err == nil {
		_, err = f.WriteAt(room, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, j.disk.Remove(name))
	}
	return nil
}

// giveRoom gives back what was set aside, and reports whether there was any.
func (j *Journal) giveRoom(cause error) bool {
	if j.limits.reserveBytes == 0 || j.spent != nil {
		return false
	}
	if err := j.disk.Remove(filepath.Join(j.dir, reserveName)); err != nil {
		return false
	}
	j.spent = full(cause)
	j.log.WithError(cause).Error("disk full: using the reserve, operations refused")
	return true
}
