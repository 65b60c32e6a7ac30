package journal

import "testing"

// TestFaultMatrix runs the rows of the fault matrix that concern only the journal.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	t.Run("F46_torn_at_every_offset", func(t *testing.T) {
		t.Parallel()
		t.Run("last group", testLogTornAtEveryOffset)
	})
	t.Run("F47_flipped_bits", func(t *testing.T) {
		t.Parallel()
		t.Run("every bit", everyFlippedBit)
		t.Run("several places", testSeveralDamagedPlaces)
	})
	t.Run("F50_failed_fsync", func(t *testing.T) {
		t.Parallel()
		t.Run("not trusted later", testFailedFsyncIsNotTrustedLater)
		t.Run("stays refused", testRefusedOperationStaysRefusedAfterACrash)
	})
	t.Run("F103_other_format", func(t *testing.T) {
		t.Parallel()
		t.Run("left alone", testAnotherFormatIsLeftAlone)
		t.Run("only statuses", testUnavailableJournalStillAnswersStatus)
	})
}
