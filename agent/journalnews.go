package agent

import (
	"errors"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// tellOfJournal tells what the journal lost, and from now on whenever it
// cannot be written.
func (s *session) tellOfJournal(left journal.Recovered) {
	if d := left.Damage; d != nil && d.Found {
		s.events.tell(agentproto.Event{
			Kind: agentproto.EventJournalDamaged,
			Message: "part of the journal could not be read: processes that run are looked after, " +
				"but none is started by itself until a command starts, restarts or supervises it again",
			Details: map[string]any{"found": d.Detail, "copies": "journal.bad-" + d.ID + "-*"},
		})
	}
	// A journal that cannot be used at all is not ready from the start.
	if err := s.ledger.Ready(); err != nil {
		s.tellTrouble(err)
	}
	s.ledger.OnTrouble(func(err error) {
		if err != nil {
			s.tellTrouble(err)
		}
	})
}

func (s *session) tellTrouble(err error) {
	kind := agentproto.EventJournalFull
	if errors.Is(err, journal.ErrDamaged) {
		kind = agentproto.EventJournalDamaged
	}
	s.events.tell(agentproto.Event{
		Kind: kind, Message: "the journal cannot be written, what would change the host is refused",
		Details: map[string]any{"error": err.Error()},
	})
}
