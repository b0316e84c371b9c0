// Package bloom is a Bloom filter on Redis: a set that says "surely not" or "probably", in ten bits an element,
// whatever the elements are. It is Redisson's RBloomFilter bit for bit, so Java and Go fill and ask one filter.
//
//	seen := c.NewBloomFilter("seen")
//	if _, err := seen.Init(ctx, 1_000_000, 0.01); err != nil {
//		return err
//	}
//	added, err := seen.Add(ctx, []byte("https://example.com/"))
//	known, err := seen.Contains(ctx, []byte("https://example.com/"))
//
// # What is promised
//
// No false negative, as long as both keys live: what was added is found. Parameters cannot differ silently: they stand
// in Redis beside the bits, each call compares them, and what does not fit is read anew or an error, never "no".
//
// The share of false positives is what Redisson's choice of bits gives. It is near p for 10⁻² and above, and misses it
// below, as was measured with n elements in a filter for n (2 to 4 million questions each):
//
//	promised   0.03    0.01    10⁻³            10⁻⁴            10⁻⁵                 10⁻⁶
//	measured   0.035   0.011   1.4–1.9·10⁻³    1.8–3.4·10⁻⁴    2.5–9·10⁻⁵           3–8·10⁻⁶
//
// Worst is a number of bits that four divides. [Suggest] finds a p for both sides that gives an odd one. Nobody can
// take an element out, and a filter with more than n elements says "probably" more often.
//
// # In Redis
//
// <name> is the string of bits, {<name>}:config the hash with size, hashIterations, expectedInsertions and falseProbability.
// Neither ends by itself. A filter takes all its memory when it is made: 1.2 MB for a million elements at 0.01; the
// most is 512 MB. Above 64 MB the server stands still for 60 ms and more when it is made and counted, and a slot that
// moves carries it whole: [NewSharded] makes several of one.
//
// Add and Contains are one pipeline of BITFIELD (or BITFIELD_RO) and HMGET, for up to a thousand bits in a command. They ask
// the master: a replica can miss what was just added.
//
// # Elements
//
// What is hashed is the element as Java's codec encodes it. Java should use StringCodec, whose bytes are the element's own.
// Redisson's default, Kryo5, is understood for strings: see [WithKryo5].
package bloom
