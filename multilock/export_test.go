package multilock

// Holders returns how many owners hold a quorum, as far as this process knows.
func Holders() int {
	holders.Lock()
	defer holders.Unlock()
	return len(holders.of)
}
