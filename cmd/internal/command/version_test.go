package command

import (
	"runtime/debug"
	"testing"
)

func TestVersionOf(t *testing.T) {
	t.Parallel()
	const commit = "0d8ce3f76a09760c51be9610d23e981b024144d8"
	for want, built := range map[string]struct{ module, revision, modified string }{
		"0.1.0":                        {"v0.1.0", commit, "false"},
		"1.2.3-rc.1":                   {"v1.2.3-rc.1", commit, "false"},
		"0.1.0-dev+0d8ce3f76a09":       {"v0.0.0-20261129033145-0d8ce3f76a09", commit, "false"},
		"0.1.0-dev+0d8ce3f76a09.dirty": {"v0.1.0+dirty", commit, "true"},
		"0.1.0-dev+1d8ce3f76a09":       {"v0.1.1-0.20261129033145-1d8ce3f76a09", "1" + commit[1:], "false"},
		"0.1.0-dev+2d8ce3f76a09.dirty": {"v0.1.1-0.20261129033145-2d8ce3f76a09+dirty", "2" + commit[1:], "true"},
		"0.1.0-dev+3d8ce3f76a09":       {"(devel)", "3" + commit[1:], "false"},
		"0.1.0-dev":                    {"(devel)", "", ""},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: built.module}}
		if built.revision != "" {
			info.Settings = []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: built.revision}, {Key: "vcs.modified", Value: built.modified}}
		}
		if got := versionOf(info); got != want {
			t.Errorf("%+v: version %s, want %s", built, got, want)
		}
	}
}
