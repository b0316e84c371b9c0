package mask

import (
	"errors"
	"io"
	"testing"
)

// Errors are compared by errors.Is, and by applications that report an error once.
func TestError_isComparable(t *testing.T) {
	err := error(struct{ error }{Error(io.EOF, io.ErrClosedPipe)})
	if !errors.Is(err, err) || Error(io.EOF) == Error(io.EOF) {
		t.Errorf("%v differs from itself, or equals another error", err)
	}
}
