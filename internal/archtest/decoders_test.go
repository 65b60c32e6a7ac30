package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// decodes matches calls in functions that decode foreign data.
var decodes = regexp.MustCompile(`\.(Unmarshal\w*|YAMLToJSON\w*|NewDecoder|Decode[A-Z]?\w*|Uvarint|Varint|Uint(16|32|64)|Extract|ParseQuery|NewScanner|NewReader|Peek\w*)$`)

// harmless matches calls that have the name of a decoder but decode no foreign data. Decode of a
// variable "codec" is the decoder of a dialect; the table contains the dialects in a row of their own.
var harmless = regexp.MustCompile(`^(bytes|strings|utf8|utf16|rand|codec)\.`)

// notDecoders are folders whose code reads no data from a network, or is in no released program.
var notDecoders = []string{
	"cmd",            // files and arguments of whoever starts a command; the tools for measuring read agents' messages with agentproto
	"deploy", "test", // tests
	"internal/testenv",                                                                                   // tests
	"catalog/catalogtest", "taskstore/storetest", "dispatcher/dialect/dialecttest", "dispatcher/openapi", // tests, and a document that is part of the program
	"taskstore/boltstore", "catalog/boltcatalog", "internal/boltdb", // a file of this machine that one process has to itself; its records are read by taskstore/internal/pack and catalog/internal/pack
	"internal/natsembed", // tokens that internal/natsauth has made in the same process
}

const ownRecord = "a record of this agent's journal, behind a checksum: agent/journal.FuzzOpen, and " // and what reads the frames

// decoders contains, for every function that decodes foreign data, the fuzz targets that reach it, each
// with its package, or "-" and the reason why no fuzz target is needed. The search finds only functions
// that use a library; hand-written parsers are added by hand.
var decoders = map[string]string{
	".Amount.UnmarshalJSON":   "dispatcher/dialect.FuzzDecode",
	".Duration.UnmarshalJSON": "dispatcher/dialect.FuzzDecode catalog/internal/pack.FuzzReadSpec",
	".Host.UnmarshalText":     "dispatcher/dialect.FuzzDecode",
	".ParseHost":              ".FuzzParseHost",

	"web.languages":          "- files that are part of the program",
	"web.operateForm.limits": "web.FuzzRequest",
	"web.sessions.of":        "web.FuzzRequest",

	"label.Parse":       "label.FuzzParseFilter",
	"label.ParseFilter": "label.FuzzParseFilter",

	"agentproto.Decode": "agentproto.FuzzDecodeCommand agentproto.FuzzDecodeReply agentproto.FuzzDecodeResults agentproto.FuzzDecodeResend " +
		"agentproto.FuzzDecodeResendReply agentproto.FuzzDecodeCancel agentproto.FuzzDecodeCancelReply agentproto.FuzzDecodeOutput agentproto.FuzzDecodeOutputReply agentproto.FuzzDecodePresence agentproto.FuzzDecodePresenceReply agentproto.FuzzDecodeProcesses " +
		"agentproto.FuzzDecodeEvent agentproto.FuzzDecodeReceipt agentproto.FuzzDecodeSettingsRequest agentproto.FuzzDecodeSettingsReply agentproto.FuzzDecodeSettingsChanged",
	"agentproto.CancelItems.UnmarshalJSONFrom":      "agentproto.FuzzDecodeCancelReply",
	"agentproto.ReplyItems.UnmarshalJSONFrom":       "agentproto.FuzzDecodeReply",
	"agentproto.ResultList.UnmarshalJSONFrom":       "agentproto.FuzzDecodeResults",
	"agentproto.ItemList.UnmarshalJSONFrom":         "agentproto.FuzzDecodeReceipt",
	"agentproto.ManagedProcesses.UnmarshalJSONFrom": "agentproto.FuzzDecodeProcesses",
	"agentproto.decodeList":                         "agentproto.FuzzDecodeReply agentproto.FuzzDecodeResults agentproto.FuzzDecodeProcesses agentproto.FuzzDecodeReceipt",

	"agentproto.Peek":           "agentproto.FuzzPeekType",
	"agentproto.Result.Bounded": "agentproto.FuzzBounded",

	"agent.intake.verifiedType": "agent.FuzzIntake",
	"agent.intake.decode":       "agent.FuzzIntake",
	"agent.intake.unpack":       "agent.FuzzIntake",
	"agent.intake.resend":       "agent.FuzzIntake",
	"agent.intake.cancel":       "agent.FuzzIntake",
	"agent.intake.output":       "agent.FuzzIntake",
	"agent.intake.refuse":       "agent.FuzzIntake",
	"agent.intake.respond":      "agentproto.FuzzPeekType",
	"agent.settingsClient.load": "agent.FuzzSettingsReply",
	"agent.requester.request": "agent.FuzzSettingsReply agentproto.FuzzDecodePresenceReply agentproto.FuzzDecodeResendReply " +
		"agentproto.FuzzDecodeReceipt",

	"internal/bus.Bus.outputReply":             "agentproto.FuzzDecodeOutputReply",
	"dispatcher.exchange.listAudit":            "- a record of the audit log, which this server's roles wrote",
	"agent.folder.storedBinding":               "- a private file that this program wrote; anything else in it counts as none",
	"agent/journal.decodeRecord":               "agent/journal.FuzzOpen",
	"agent/journal.readFrame":                  "agent/journal.FuzzOpen",
	"agent/journal.Journal.checkFormat":        "agent/journal.FuzzOpen",
	"agent/journal.Journal.resultOf":           "agent/journal.FuzzOpen",
	"agent/operate.actor.restore":              "- " + ownRecord + "its own tests",
	"agent/operate/procop.AutoStart.awaitLeft": "- " + ownRecord + "its own tests",
	"agent/operate/procop.recovery.operation":  "- " + ownRecord + "its own tests",
	"agent/local.readReply":                    "agent/local.FuzzReadReply",
	"agent/local.Server.reply":                 "agent/local.FuzzReply",
	"agent/proc.parseStat":                     "agent/proc.FuzzParseStat",
	"agent/proc.readPidFile":                   "agent/proc.FuzzPidLines",
	"agent/proc.decodeCodePage":                "- bytes to text of a code page of Windows, by golang.org/x/text; any bytes are some text",
	"agent/supervise.Crontab":                  "agent/supervise.FuzzCrontab",

	"catalog.Value.UnmarshalJSON": "dispatcher/dialect.FuzzDecode",

	"catalog/internal/pack.ReadReport":   "catalog/internal/pack.FuzzReadReport",
	"catalog/internal/pack.ReadTemplate": "catalog/internal/pack.FuzzReadTemplate",
	"catalog/internal/pack.ReadTopology": "catalog/internal/pack.FuzzReadTopology",
	"catalog/internal/pack.ReadSpec":     "catalog/internal/pack.FuzzReadSpec",
	"catalog/internal/pack.ReadGroups":   "catalog/internal/pack.FuzzReadGroups",

	"catalog/rediscatalog.readFreeze":        "catalog/rediscatalog.FuzzReadFreeze",
	"catalog/rediscatalog.readMember":        "catalog/rediscatalog.FuzzReadRegistration",
	"catalog/rediscatalog.readRegistrations": "catalog/rediscatalog.FuzzReadRegistration",
	"catalog/rediscatalog.Catalog.LabelsOf":  "- a JSON object of texts, by encoding/json; any other content is an error",
	"catalog/rediscatalog.readDead":          "- JSON objects that RecordDelivery wrote, by encoding/json; any other content is an error",
	"catalog/rediscatalog.readWebhook":       "- JSON objects that SetWebhook and RecordDelivery wrote, by encoding/json; any other content is an error",
	"catalog/rediscatalog.readSchedule":      "- JSON objects that SetSchedule and RecordRun wrote, by encoding/json; any other content is an error",
	"catalog/rediscatalog.Catalog.Policies":  "- a JSON object that SetPolicies validated, by encoding/json; any other content is an error",

	"api/v1.CatalogProcess.UnmarshalJSON": "client.FuzzAnswers",
	"client.Client.attempt":               "client.FuzzAnswers",
	"client.refusal":                      "client.FuzzAnswers",
	"client.newEventReader":               "client.FuzzEvents",
	"client.follower.stream":              "- data of an event that FuzzEvents reads, by encoding/json; any other content is an error",
	"client.watch.handle":                 "client.FuzzAnswers", // the task of an event is the one of an answer

	"dispatcher.delivery.accept":                 "dispatcher.FuzzSubmission",
	"dispatcher.exchange.trace":                  "internal/tracecontext.FuzzExtract",
	"dispatcher/apps.Parse":                      "dispatcher/apps.FuzzAFileThatIsReadCanBeWrittenAndReadAgain",
	"dispatcher/apps.parseHash":                  "dispatcher/apps.FuzzAFileThatIsReadCanBeWrittenAndReadAgain",
	"dispatcher/apps.Registry.VerifySignature":   "dispatcher/auth.FuzzAuthenticate",
	"dispatcher/auth.Authenticator.Authenticate": "dispatcher/auth.FuzzAuthenticate",
	"dispatcher/auth.login.fetch":                "dispatcher/auth.FuzzLogin",

	"internal/bus.DecodeChunkRef":     "internal/bus.FuzzDecodeChunkRef",
	"internal/bus.DecodeHostEvent":    "internal/bus.FuzzDecodeHostEvent",
	"internal/bus.CheckReplySubject":  "internal/bus.FuzzCheckReplySubject",
	"internal/bus.readTaskEvent":      "internal/bus.FuzzRecordOfEvent",
	"internal/bus.Submission.Context": "internal/tracecontext.FuzzExtract",

	"internal/fleetkey.parseSignature": "internal/fleetkey.FuzzVerify",
	"internal/fleetkey.Parse":          "internal/fleetkey.FuzzParse",
	"internal/fleetkey.parseFile":      "internal/fleetkey.FuzzParse",
	"internal/fleetkey.File.Ring":      "internal/fleetkey.FuzzParse",
	"internal/fleetkey.ParseIdentity":  "internal/fleetkey.FuzzParse",
	"internal/fleetkey.HostFile.Open":  "internal/fleetkey.FuzzParse",
	"internal/fleetkey.decode32":       "internal/fleetkey.FuzzParse",
	"internal/fleetkey.Update":         "internal/fleetkey.FuzzParse",

	"internal/bus.Bus.FollowWorkers":           "- a message of another server of the fleet, with plain members only",
	"internal/bus.isStrict":                    "- a reply of the NATS server itself",
	"internal/natsauth.ParseCredentials":       "internal/natsauth.FuzzParseCredentials",
	"internal/natsauth.Authority.UserOf":       "internal/natsauth.FuzzParseCredentials",
	"internal/natsauth.parseUsers":             "- as internal/natsauth.Open",
	"internal/natsauth.Open":                   "- a private file that this program wrote, of the operator's own keys",
	"internal/natsauth.Authority.read":         "- as internal/natsauth.Open",
	"internal/natsauth.openSeed":               "- as internal/natsauth.Open",
	"internal/natsauth.Authority.accountToken": "- as internal/natsauth.Open",
	"internal/natsconn.expiry":                 "internal/natsconn.FuzzCredentials",
	"internal/packing.Fields.Uint":             "catalog/internal/pack.FuzzReadReport",
	"internal/peercred.parseReply":             "- reply of the kernel of this machine",
	"internal/peercred.diagReply.ends":         "- as internal/peercred.parseReply",
	"internal/tlsfiles.certificates":           "internal/tlsfiles.FuzzCertificates",
	"internal/tracecontext.Extract":            "internal/tracecontext.FuzzExtract",
	"internal/tracecontext.FromText":           "internal/tracecontext.FuzzExtract",

	"taskstore/internal/pack.OpenChunk":         "taskstore/internal/pack.FuzzReadChunk taskstore/redisstore.FuzzReadTask",
	"taskstore/internal/pack.ReadResult":        "taskstore/internal/pack.FuzzReadResult",
	"taskstore/internal/pack.ReadPreviousSpecs": "taskstore/internal/pack.FuzzReadPreviousSpecs",
	"taskstore/internal/pack.Page":              "taskstore/internal/pack.FuzzPage",

	"taskstore/redisstore.readHead":         "taskstore/redisstore.FuzzReadTask",
	"taskstore/redisstore.readRelease":      "taskstore/redisstore.FuzzReadTask",
	"taskstore/redisstore.readItemCancels":  "taskstore/redisstore.FuzzReadItemCancels",
	"taskstore/redisstore.readTransition":   "taskstore/redisstore.FuzzReadTransition",
	"taskstore/redisstore.readHold":         "taskstore/redisstore.FuzzReadTask",
	"taskstore/redisstore.readLayout":       "taskstore/redisstore.FuzzReadTask",
	"taskstore/redisstore.readEntry":        "taskstore/redisstore.FuzzReadPresence",
	"taskstore/redisstore.readAnnouncement": "taskstore/redisstore.FuzzReadPresence",

	"worker/agentlink.parseReplyToken": "worker/agentlink.FuzzReplyToken",

	"worker/collect.decodeResults":        "worker/collect.FuzzDecodeResults",
	"worker/collect.resultTrace.recorded": "internal/tracecontext.FuzzExtract",

	"worker/hosts.events.open":           "internal/bus.FuzzDecodeHostEvent",
	"worker/hosts.decodePresence":        "worker/hosts.FuzzDecodePresence",
	"worker/hosts.decodeReport":          "worker/hosts.FuzzDecodeReport",
	"worker/hosts.decodeSettingsRequest": "worker/hosts.FuzzDecodeSettingsRequest",

	"worker/deliver.delivery.handleReply": "worker/deliver.FuzzReply",
	"worker/deliver.cancellation.handle":  "worker/deliver.FuzzCancelReply",
	"worker/deliver.Deliverer.deliver":    "internal/bus.FuzzDecodeChunkRef internal/tracecontext.FuzzExtract",
	"worker/deliver.Deliverer.requeue":    "internal/tracecontext.FuzzExtract",
	"worker/deliver.Deliverer.republish":  "internal/bus.FuzzDecodeChunkRef",

	"worker/sweep.Sweeper.readReply": "worker/sweep.FuzzResendReply",
}

// dialects is the package for whose functions one fuzz target is enough: it reaches every call of every
// dialect.
const dialects = "dispatcher/dialect"

var dialectTargets = []string{"dispatcher/dialect.FuzzDecode", "dispatcher/dialect.FuzzUnknownMembers", "dispatcher/dialect.FuzzRenderedText", "dispatcher/dialect.FuzzRenderedFloat"}

// source contains the functions of the module as "<package>.<function>" or "<package>.<Type>.<method>".
type source struct {
	functions map[string]bool // whether it decodes
	targets   map[string]bool // fuzz targets
}

func TestEveryDecoderIsFuzzed(t *testing.T) {
	t.Parallel()
	code := readSource(t)
	if len(code.targets) == 0 {
		t.Fatal("no fuzz target was found")
	}
	named := map[string]bool{}
	for _, target := range dialectTargets {
		named[target] = true
	}
	for name, by := range decoders {
		if _, exists := code.functions[name]; !exists {
			t.Errorf("%s is in the table of decoders and not in the code", name)
		}
		if strings.HasPrefix(by, "- ") {
			continue
		}
		for target := range strings.FieldsSeq(by) {
			named[target] = true
			if !code.targets[target] {
				t.Errorf("%s is to be fuzzed by %s, which does not exist", name, target)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(code.functions)) {
		if code.functions[name] && decoders[name] == "" {
			t.Errorf("%s decodes: name the fuzz target that reaches it in the table of decoders, or say there why it needs none", name)
		}
	}
	for target := range code.targets {
		if !named[target] {
			t.Errorf("%s is named by no row of the table of decoders", target)
		}
	}
}

// The corpora are replayed by every run of the tests.
func TestTheCorporaAreSmallAndBelongToTargets(t *testing.T) {
	t.Parallel()
	const maxFiles, maxBytes = 20, 64 << 10
	targets := readSource(t).targets
	root := filepath.Join("..", "..")
	var folders []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), "Fuzz") && filepath.Base(filepath.Dir(name)) == "fuzz" {
			folders = append(folders, name)
		}
		return err
	})
	if err != nil || len(folders) == 0 {
		t.Fatalf("%d corpora were found, %v", len(folders), err)
	}
	for _, folder := range folders {
		at, err := filepath.Rel(root, folder)
		if err != nil {
			t.Fatal(err)
		}
		pkg, target, _ := strings.Cut(filepath.ToSlash(at), "testdata/fuzz/")
		if target = strings.TrimSuffix(pkg, "/") + "." + target; !targets[target] {
			t.Errorf("%s is the corpus of no fuzz target", at)
		}
		inputs, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		size := int64(0)
		for _, input := range inputs {
			info, err := input.Info()
			if err != nil {
				t.Fatal(err)
			}
			size += info.Size()
		}
		if len(inputs) > maxFiles || size > maxBytes {
			t.Errorf("%s has %d files of %d bytes; %d and %d are allowed", at, len(inputs), size, maxFiles, maxBytes)
		}
	}
}

// readSource parses the module, once for all tests.
func readSource(t *testing.T) source {
	t.Helper()
	code, err := sourceOnce()
	if err != nil {
		t.Fatal(err)
	}
	return code
}

var sourceOnce = sync.OnceValues(func() (source, error) {
	code := source{functions: map[string]bool{}, targets: map[string]bool{}}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		at = filepath.ToSlash(at)
		if entry.IsDir() {
			if at != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || slices.Contains(notDecoders, at)) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(at) != ".go" {
			return nil
		}
		return code.readFile(name, strings.TrimPrefix(path.Dir(at), "."))
	})
	return code, err
})

func (s *source) readFile(name, pkg string) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	isTest := strings.HasSuffix(name, "_test.go")
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		switch {
		case !ok || fn.Body == nil:
		case isTest && strings.HasPrefix(fn.Name.Name, "Fuzz"):
			s.targets[pkg+"."+fn.Name.Name] = true
		case !isTest:
			s.functions[pkg+"."+receiver(fn)+fn.Name.Name] = pkg != dialects && isDecoder(fn)
		}
	}
	return nil
}

// receiver returns the name of a method's type with a dot.
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	for at := fn.Recv.List[0].Type; ; {
		switch of := at.(type) {
		case *ast.StarExpr:
			at = of.X
		case *ast.IndexExpr:
			at = of.X
		case *ast.Ident:
			return of.Name + "."
		default:
			return ""
		}
	}
}

func isDecoder(fn *ast.FuncDecl) (found bool) {
	if fn.Recv != nil && strings.HasPrefix(fn.Name.Name, "Unmarshal") {
		return true
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name := "." + selector.Sel.Name
		if of, ok := selector.X.(*ast.Ident); ok {
			name = of.Name + name
		}
		found = found || decodes.MatchString(name) && !harmless.MatchString(name)
		return true
	})
	return found
}
