package journal

import "testing"

// TestFaultMatrix runs the rows of the fault matrix that concern only the journal.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	t.Run("F46_torn_at_every_offset", func(t *testing.T) {
		t.Parallel()
		t.Run("last group", TestLogTornAtEveryOffset)
	})
	t.Run("F47_flipped_bits", func(t *testing.T) {
		t.Parallel()
		t.Run("every bit", everyFlippedBit)
		t.Run("several places", TestSeveralDamagedPlaces)
	})
	t.Run("F50_failed_fsync", func(t *testing.T) {
		t.Parallel()
		t.Run("not trusted later", TestFailedFsyncIsNotTrustedLater)
		t.Run("stays refused", TestRefusedOperationStaysRefusedAfterACrash)
	})
	t.Run("F103_other_format", func(t *testing.T) {
		t.Parallel()
		t.Run("left alone", TestAnotherFormatIsLeftAlone)
		t.Run("only statuses", TestUnavailableJournalStillAnswersStatus)
	})
}
