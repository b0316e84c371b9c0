package session

import (
	"reflect"
	"testing"
)

// Each Lock allocates an acquisition, of the size class of 512 bytes. The next one has 576 bytes, 8 of which the runtime
// uses. What few locks use belongs in a record that is made at first need.
func TestAcquisition_size(t *testing.T) {
	const most = 512
	if size := reflect.TypeFor[acquisition]().Size(); size > most {
		t.Errorf("an acquisition has %d bytes, want at most %d", size, most)
	}
}
