//go:build linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// smallDisk is the size of a small disk. A fleet writes less in an hour.
const smallDisk = "512m"

// hasSmallDisk reports whether a node gets a small disk if the fleet has small
// disks.
func (n *Node) hasSmallDisk() bool { return n.Kind == NATS || n.Kind == Redis || n.Kind == Agent }

// mountSmallDisk mounts a file system in memory at the node's folder.
func (n *Node) mountSmallDisk(ctx context.Context) error {
	_, err := run(ctx, "mount", "-t", "tmpfs", "-o", "size="+smallDisk, "tmpfs", n.fleet.path(n.Name, "data"))
	return err
}

// filler is the file that fills a disk.
const filler = "filler"

// FillDisk fills the node's disk until EmptyDisk.
func (n *Node) FillDisk() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.fleet.cfg.SmallDisks || !n.hasSmallDisk() {
		return fmt.Errorf("%s has no small disk", n)
	}
	n.faults.full = true
	f, err := os.Create(n.fleet.path(n.Name, "data", filler))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("fill the disk of %s: %w", n, err)
	}
	return nil
}

// EmptyDisk ends FillDisk. A NATS server disables JetStream when a write fails
// because the disk is full, so EmptyDisk restarts it, as the documentation says.
func (n *Node) EmptyDisk() error {
	n.mu.Lock()
	if !n.faults.full {
		n.mu.Unlock()
		return nil
	}
	n.faults.full = false
	err := os.Remove(n.fleet.path(n.Name, "data", filler))
	n.mu.Unlock()
	if n.Kind == NATS {
		err = errors.Join(err, n.Restart())
	}
	return err
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// state is the subfolder with a node's durable data.
var state = map[Kind][]string{
	NATS: {"nats"}, Redis: {"appendonlydir", "dump.rdb"}, Agent: {"agent"},
}

// Wipe kills the node and removes its stored data. The node stays down until Start.
func (n *Node) Wipe() error {
	began := time.Now()
	if err := n.Kill(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed []error
	for _, name := range state[n.Kind] {
		failed = append(failed, os.RemoveAll(n.fleet.path(n.Name, "data", name)))
	}
	n.wipes = append(n.wipes, Span{began, time.Now()})
	return errors.Join(failed...)
}
