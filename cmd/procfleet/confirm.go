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

var errNotConfirmed = errors.New("not confirmed, nothing was submitted")

// confirm asks the user before a stop, kill or release on more than askedAbove hosts. It never
// asks without a terminal.
func (f *opFlags) confirm(cmd *cobra.Command, s client.Submission) error {
	action := s.Operations[0].Action
	switch action {
	case procfleet.ActionStop, procfleet.ActionKill, procfleet.ActionRelease:
	default:
		return nil
	}
	in, isFile := cmd.InOrStdin().(*os.File)
	if f.submission.yes || !isFile || !term.IsTerminal(int(in.Fd())) || !isTerminal(cmd.ErrOrStderr()) {
		return nil
	}
	hosts, err := f.countHosts(cmd, s)
	if err != nil || hosts <= askedAbove {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s on %d hosts? Type yes to go on: ", action, hosts)
	line, _ := bufio.NewReader(in).ReadString('\n')
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
