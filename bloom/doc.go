// Package bloom implements Bloom filters on Redis: approximate set membership with no false
// negatives. A filter needs about ten bits per element. It is Redisson's RBloomFilter bit for bit,
// so Java and Go can share a filter.
//
//	seen := c.NewBloomFilter("seen")
//	if _, err := seen.Init(ctx, 1_000_000, 0.01); err != nil {
//		return err
//	}
//	added, err := seen.Add(ctx, []byte("https://example.com/"))
//	known, err := seen.Contains(ctx, []byte("https://example.com/"))
//
// # Guarantees
//
// There are no false negatives while both keys exist and the primary replies (see below). Contains
// finds every element that was added.
// The parameters are stored next to the bits, and each call compares them. If they differ from the
// handle's parameters, the call reads them again or fails. A mismatch never makes it return false.
//
// The rate of false positives follows from Redisson's choice of bits. It is close to p for 10⁻² and
// above, and higher than p for smaller p. These rates were measured with n elements in a filter for
// n (2 to 4 million lookups each):
//
//	p          0.03    0.01    10⁻³            10⁻⁴            10⁻⁵                 10⁻⁶
//	measured   0.035   0.011   1.4–1.9·10⁻³    1.8–3.4·10⁻⁴    2.5–9·10⁻⁵           3–8·10⁻⁶
//
// A number of bits that is divisible by four has the worst rate. [SuggestProbability] returns a p
// that gives an odd number. Go and Java must both use it. Elements cannot be removed, and the rate
// grows with more than n elements.
//
// # In Redis
//
// <name> is the string of bits, and {<name>}:config a hash with size, hashIterations,
// expectedInsertions and falseProbability. Neither key expires. Init allocates the whole filter at
// once, for example 1.3 MB for a million elements at 0.01. The maximum is 640 MB, the size that
// jemalloc uses for 512 MB. Init first checks that the server has enough memory (see
// [ErrTooLarge]). A filter that Redisson created grows when elements are added, without a check.
//
// With more than 64 MB, Init and Count block the server for 60 ms or more. A slot migration moves
// the whole filter at once. [NewSharded] splits one filter into several.
//
// Add and Contains send one pipeline of BITFIELD (or BITFIELD_RO) and HMGET, with up to 1,000 bits
// per command. More than 16,384 elements are sent in several pipelines. While a pipeline is in
// flight, the calls of other goroutines are collected and sent with the next one. If reading the
// whole filter is cheaper than the lookups, Contains reads it with GETRANGE. Both calls use the
// primary, because a replica can miss the latest elements. A demoted primary whose connection stays
// open, as after a REPLICAOF by hand, replies as a replica. Contains can then miss the latest
// elements until the client reconnects.
//
// # Elements
//
// Redisson hashes an element as its codec encodes it. Java should use StringCodec, whose bytes are
// those of the element. For strings, this package also supports Kryo5, Redisson's default codec
// (see [WithKryo5]).
package bloom
