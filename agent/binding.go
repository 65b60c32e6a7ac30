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

// binding says to which machine and file an instance id belongs. The file of
// the instance id is written once, so a copy of the data folder, or one that
// comes from a backup, has it in another inode.
type binding struct {
	Instance string `json:"instance"`
	// MachineID outlives a boot, BootID does not; "" if it is not known.
	MachineID string `json:"machine_id,omitempty"`
	BootID    string `json:"boot_id,omitempty"`
	Inode     uint64 `json:"inode,omitempty"` // of the file of the instance id; 0 = not known
}

// maxBinding bounds the file in bytes.
const maxBinding = 4 << 10

// foreign says why a folder that was bound as kept is not the one that is found
// now; "" if it is, as far as both are known. The same boot proves the same machine, also in
// a container whose image brings a machine id of its own.
func (kept *binding) foreign(now *binding) string {
	sameBoot := kept.BootID != "" && kept.BootID == now.BootID
	switch {
	case !sameBoot && kept.MachineID != "" && now.MachineID != "" && kept.MachineID != now.MachineID:
		return "it was made on another machine"
	case kept.Inode != 0 && now.Inode != 0 && kept.Inode != now.Inode:
		return "it is a copy, or was restored from a backup"
	}
	return ""
}

func (f *folder) bindingPath() string { return filepath.Join(f.dir, "machine") }

// bind notes to which machine and file the instance id belongs now.
func (f *folder) bind() error {
	now, err := f.boundNow()
	if err != nil {
		return err
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	return replaceDurably(f.bindingPath(), string(text)+"\n")
}

func (f *folder) boundNow() (*binding, error) {
	inode, err := inodeOf(f.instancePath())
	return &binding{Instance: f.instance, MachineID: machineID(), BootID: bootID(), Inode: inode}, err
}

// kept reads the binding; nil if there is none for this instance id, as of a
// folder that an agent of an earlier release made.
func (f *folder) kept() (*binding, error) {
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

// leaveCopy begins anew in a folder that was copied or restored: what its
// journal has was accepted elsewhere, or was done since the backup, and must
// not be executed here. The journal is set aside, not deleted.
func (f *folder) leaveCopy() error {
	kept, err := f.kept()
	if err != nil {
		return err
	}
	now, err := f.boundNow()
	if err != nil {
		return err
	}
	if kept == nil {
		return f.bind()
	}
	why := kept.foreign(now)
	if why == "" {
		if *kept == *now {
			return nil
		}
		return f.bind() // after a boot, say
	}
	aside := f.journal() + ".of-" + f.instance
	if _, err := os.Lstat(aside); err == nil {
		aside += time.Now().UTC().Format("-20060102-150405")
	}
	if err := os.Rename(f.journal(), aside); err != nil {
		return fmt.Errorf("set the journal of a copied folder aside: %w", err)
	}
	if err := datafile.SyncDir(f.dir); err != nil {
		return err
	}
	old := f.instance
	if f.instance, err = newInstanceID(f.instancePath()); err != nil {
		return err
	}
	f.copied = fmt.Sprintf("data folder %s is not that of instance %s any more: %s; nothing that it had accepted or supervised is executed, "+
		"the agent goes on as new instance %s, and the journal is kept in %s: supervise the processes of this host again", f.dir, old, why, f.instance, filepath.Base(aside))
	return f.bind()
}

func (s *session) reportCopiedFolder() {
	if s.folder.copied == "" {
		return
	}
	s.cfg.Log.Error(s.folder.copied)
	s.events.tell(agentproto.Event{Kind: agentproto.EventCopiedFolder, Message: s.folder.copied})
}
