package boltcatalog

import (
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// The buckets. Numbers in keys are big-endian, so that keys sort like the numbers.
var (
	bucketProcesses = []byte("processes") // namespace, name, host key → standing
	bucketSpecs     = []byte("specs")     // digest of the packed spec → number of its registrations, packed spec
	bucketReports   = []byte("reports")   // host key → packed report
	bucketGroups    = []byte("groups")    // host key, 0, namespace → packed groups
	bucketLabels    = []byte("labels")    // host key → JSON object of labels
	bucketFreezes   = []byte("freezes")   // scopeKey → freezeRecord
	bucketPolicies  = []byte("policies")  // namespace → catalog.RolloutPolicies
	bucketSchedules = []byte("schedules") // namespace, 0, name → catalog.Schedule
	bucketWebhooks  = []byte("webhooks")  // application, 0, name → catalog.Webhook
	bucketDead      = []byte("dead")      // application, 0, name, 0, position → catalog.DeadDelivery

	bucketTemplates  = []byte("templates")  // business, id → packed template; the bucket's sequence is the last id
	bucketClaims     = []byte("claims")     // business, digest of a claim → id of the template that has it
	bucketRevisions  = []byte("revisions")  // business → number of changes of its templates
	bucketTopologies = []byte("topologies") // business → version, packed topology
)

func buckets() [][]byte {
	return [][]byte{
		bucketProcesses, bucketSpecs, bucketReports, bucketGroups, bucketLabels, bucketFreezes, bucketPolicies, bucketSchedules,
		bucketWebhooks, bucketDead,
		bucketTemplates, bucketClaims, bucketRevisions, bucketTopologies,
	}
}

// businessKey returns the key prefix of a business. No business's prefix is a prefix of
// another's.
func businessKey(b catalog.Business) []byte {
	key := append([]byte{byte(len(b.Account))}, b.Account...)
	return append(key, boltdb.Number8(uint64(b.ID))...)
}

// tx is a transaction with operations on the catalog. They decode, and so copy, all data
// that they return, which bbolt permits to use only until the transaction ends.
type tx struct{ *boltdb.Tx }
