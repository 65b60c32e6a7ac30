package command

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// next is the version that will be tagged next.
const next = "0.1.0"

// Version returns the version of this program. If it was built at a tag, that is the
// version of the tag, such as 0.1.0; otherwise the next version and the commit, such as
// 0.1.0-dev+0d8ce3f76a09, with the suffix .dirty if files differed from the commit.
var Version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(info)
})

// Build returns the version, and what this program was built with and for.
func Build() string {
	return fmt.Sprintf("%s %s %s/%s", Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// tagged matches the version of a module at a tag. The go command adds +dirty if files
// differ from the commit, and makes a version of time and commit if there is no tag.
var tagged = regexp.MustCompile(`^v(\d+\.\d+\.\d+(-[a-z]+\.?\d*)?)$`)

func versionOf(info *debug.BuildInfo) string {
	if match := tagged.FindStringSubmatch(info.Main.Version); match != nil {
		return match[1]
	}
	version, dirty := next+"-dev", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			version += "+" + setting.Value[:min(len(setting.Value), 12)]
		case setting.Key == "vcs.modified" && setting.Value == "true":
			dirty = ".dirty"
		}
	}
	if !strings.Contains(version, "+") {
		return version
	}
	return version + dirty
}
