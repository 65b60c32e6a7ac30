package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/datafile"
)

// binding is the machine and the file to which an instance id belongs. The file of the
// instance id is written once, so it has another inode in a copy of the data folder and
// after a restore from a backup.
type binding struct {
	Instance  string `json:"instance"`
	MachineID string `json:"machine_id,omitempty"` // constant across boots; "" = unknown
	BootID    string `json:"boot_id,omitempty"`    // "" = unknown
	Inode     uint64 `json:"inode,omitempty"`      // inode of the instance id's file; 0 = unknown
}

// maxBinding is the maximum size of the binding's file, in bytes.
const maxBinding = 4 << 10

// foreign returns the evidence that the folder with the stored binding was copied or
// restored; "" = no evidence. The same boot proves the same machine, even in a container
// whose image has its own machine id.
func (stored *binding) foreign(now *binding) string {
	sameBoot := stored.BootID != "" && stored.BootID == now.BootID
	switch {
	case !sameBoot && stored.MachineID != "" && now.MachineID != "" && stored.MachineID != now.MachineID:
		return "it was made on another machine"
	case stored.Inode != 0 && now.Inode != 0 && stored.Inode != now.Inode:
		return "it is a copy, or was restored from a backup"
	}
	return ""
}

func (f *folder) bindingPath() string { return filepath.Join(f.dir, "machine") }

func (f *folder) bind() error {
	now, err := f.currentBinding()
	if err != nil {
		return err
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	return datafile.Replace(f.bindingPath(), append(text, '\n'))
}

func (f *folder) currentBinding() (*binding, error) {
	inode, err := inodeOf(f.instancePath())
	return &binding{Instance: f.instance, MachineID: machineID(), BootID: bootID(), Inode: inode}, err
}

// storedBinding reads the stored binding. It returns nil if none exists for this instance
// id: in a new folder, or if an operator deleted it to make the agent accept a restored one.
func (f *folder) storedBinding() (*binding, error) {
	text, err := datafile.Read(f.bindingPath(), maxBinding)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // not bound
	}
	if err != nil {
		return nil, err
	}
	var b binding
	if err := json.Unmarshal(text, &b); err == nil && b.Instance == f.instance {
		return &b, nil
	}
	return nil, nil //nolint:nilnil // not bound
}

// abandonCopy starts a new instance in a folder that was copied or restored. The
// operations in its journal were accepted on another host, or executed after the backup,
// and must not be executed here. The journal is renamed, not deleted.
func (f *folder) abandonCopy() error {
	stored, err := f.storedBinding()
	if err != nil {
		return err
	}
	now, err := f.currentBinding()
	if err != nil {
		return err
	}
	if stored == nil {
		return f.bind()
	}
	why := stored.foreign(now)
	if why == "" {
		if *stored == *now {
			return nil
		}
		return f.bind() // the host has booted again
	}
	aside := f.journal() + ".of-" + f.instance
	if _, err := os.Lstat(aside); err == nil {
		aside += time.Now().UTC().Format("-20060102-150405")
	}
	if err := os.Rename(f.journal(), aside); err != nil {
		return fmt.Errorf("rename the journal of a copied folder: %w", err)
	}
	if err := datafile.SyncDir(f.dir); err != nil {
		return err
	}
	old := f.instance
	if f.instance, err = newInstanceID(f.instancePath()); err != nil {
		return err
	}
	f.copied = fmt.Sprintf("data folder %s no longer belongs to instance %s: %s; its accepted operations are not executed, its processes are not supervised, "+
		"the agent continues as new instance %s, and the journal is kept in %s: supervise the processes of this host again", f.dir, old, why, f.instance, filepath.Base(aside))
	return f.bind()
}

func (s *session) reportCopiedFolder() {
	if s.folder.copied == "" {
		return
	}
	s.log.Error(s.folder.copied)
	s.events.emit(agentproto.Event{Kind: agentproto.EventCopiedFolder, Message: s.folder.copied})
}
