package multilock

import "time"

// Ballot returns the error of a quorum without a majority.
func Ballot(verdict error, majority int, reasons ...error) error {
	b := &ballot{verdict: verdict, majority: majority, reasons: reasons}
	for _, err := range reasons {
		if err == nil {
			b.votes++
		}
	}
	return b
}

// NoVote returns the reason of a server that did not vote in time.
func NoVote(within time.Duration, said error) error { return noVote{within, said} }

// Waited returns the error of a wait that WithWait ended.
func Waited(limit time.Duration, last error) error { return waited{limit, last} }

// Holders returns how many owners hold a quorum, as far as this process knows.
func Holders() int {
	holders.Lock()
	defer holders.Unlock()
	return len(holders.of)
}
