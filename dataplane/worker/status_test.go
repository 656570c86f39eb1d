package worker

import "testing"

// TestWaiting subtracts numbers that go on at 0 behind the last, and are read one after the other.
func TestWaiting(t *testing.T) {
	for _, tt := range []struct {
		name              string
		sent, taken, lost uint32
		want              int
	}{
		{"none", 5, 3, 2, 0},
		{"some", 9, 3, 2, 4},
		{"over the end", 3, 1<<32 - 2, 1, 4},
		{"more taken than were known to be sent", 5, 6, 0, 0},
	} {
		q := QueueStatus{Sent: tt.sent, Taken: tt.taken, Lost: tt.lost}
		if got := q.Waiting(); got != tt.want {
			t.Errorf("%s: %d wait, want %d", tt.name, got, tt.want)
		}
	}
}
