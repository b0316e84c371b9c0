package session

import (
	"reflect"
	"testing"
)

// Each Lock allocates an acquisition. With the 8 bytes that the runtime adds, it fits into the size class of 576 bytes.
// What few locks use belongs in a record that is made at first need.
func TestAcquisition_size(t *testing.T) {
	const most = 576 - 8
	if size := reflect.TypeFor[acquisition]().Size(); size > most {
		t.Errorf("an acquisition has %d bytes, want at most %d", size, most)
	}
}
