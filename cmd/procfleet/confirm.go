package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// askedAbove is the number of hosts above which a disruptive operation needs a confirmation.
const askedAbove = 50

var errNotConfirmed = errors.New("not confirmed, nothing was changed")

// confirm asks the user before a stop, kill or release on more than askedAbove hosts. It never
// asks without a terminal.
func (f *opFlags) confirm(cmd *cobra.Command, s client.Submission) error {
	action := s.Operations[0].Action
	switch action {
	case procfleet.ActionStop, procfleet.ActionKill, procfleet.ActionRelease:
	default:
		return nil
	}
	if f.submission.yes || !answers(cmd) {
		return nil
	}
	hosts, err := f.countHosts(cmd, s)
	if err != nil || hosts <= askedAbove {
		return err
	}
	return askUser(cmd, fmt.Sprintf("%s on %d hosts?", action, hosts))
}

// answers reports whether a user at a terminal can answer a question.
func answers(cmd *cobra.Command) bool {
	in, isFile := cmd.InOrStdin().(*os.File)
	return isFile && term.IsTerminal(int(in.Fd())) && isTerminal(cmd.ErrOrStderr())
}

// askUser returns errNotConfirmed unless the user answers yes.
func askUser(cmd *cobra.Command, question string) error {
	fmt.Fprint(cmd.ErrOrStderr(), question, " Type yes to go on: ")
	line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if strings.TrimSpace(line) != "yes" {
		return errNotConfirmed
	}
	return nil
}

// countHosts returns the number of hosts of a submission. The server counts those of a
// selection.
func (f *opFlags) countHosts(cmd *cobra.Command, s client.Submission) (int, error) {
	if n := len(s.Operations[0].Hosts); n > 0 {
		return n, nil
	}
	c, err := f.client(cmd)
	if err != nil {
		return 0, err
	}
	p, err := c.Plan(cmd.Context(), s)
	return p.Hosts, err
}
