package luascripts_test

import "testing"

// The entry of a client is written once, lives as long as the client refreshes it, and always has an expiry.
func TestClient_transcript(t *testing.T) {
	play(t, `
		client_keep [c] 5000 host 1 name label v1 now = 0
		HGETALL c = [host host label label name name pid 1 started now version v1]
		PTTL c = 5000
		client_keep [c] 7000 other 2 n l v2 then = 1
		HGET c host = host
		PTTL c = 7000
		without PEXPIRE
		client_keep [c] 9000 host 1 name label v1 now = !NOPERM
		client_keep [d] 9000 host 1 name label v1 now = !NOPERM
		EXISTS c d = 1
		without HEXISTS
		client_keep [c] 9000 host 1 name label v1 now = !NOPERM
		without
		SET s 1
		client_keep [s] 9000 host 1 name label v1 now = !WRONGTYPE
		PTTL s = -1
	`)
}
