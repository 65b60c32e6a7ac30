// Deploycheck validates the files in deploy/ with the libraries of Kubernetes and
// Prometheus. It is a separate module, because only these tests need the libraries.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "deploycheck:", err)
		os.Exit(1)
	}
}

// run writes the result as JSON.
func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("manifests FOLDER, expressions <JSON, or alerts ALERTS TESTS")
	}
	var answer any
	var err error
	switch command := args[0]; {
	case command == "manifests" && len(args) == 2:
		answer, err = manifests(args[1])
	case command == "expressions" && len(args) == 1:
		answer, err = expressions(in)
	case command == "alerts" && len(args) == 3:
		answer, err = alerts(ctx, args[1], args[2])
	default:
		err = fmt.Errorf("unknown arguments %q", args)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}
