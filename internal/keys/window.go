package keys

import "github.com/leasehold-go/leasehold/luascripts"

// Window returns the keys of a rate limiter in Redisson's layout, for a checked name.
func Window(name string) luascripts.WindowKeys {
	k := luascripts.WindowKeys{Config: name, Value: suffixed(name, "value"), Permits: suffixed(name, "permits")}
	k.Never = k.Value + ":permits" // a user with permissions for the permits has permissions for this key
	return k
}

// Filters is the pattern of the keys of Bloom filters.
const Filters = "*:config"

// Bloom returns the keys of a Bloom filter in Redisson's layout, for a checked name.
func Bloom(name string) (bits, config string) { return name, suffixed(name, "config") }
