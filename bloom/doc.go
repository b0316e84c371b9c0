// Package bloom implements a Bloom filter on Redis: a set that answers "surely not" or "probably", in ten bits an
// element, whatever the elements are. It is Redisson's RBloomFilter bit for bit, so Java and Go can share a filter.
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
// There are no false negatives while both keys exist: Contains finds every element that was added. Parameters cannot
// differ silently. They stand in Redis beside the bits, and each call compares them. If they differ from those of the
// handle, the call reads them anew or fails. It never answers "no".
//
// The share of false positives follows from Redisson's choice of bits. It is near p for 10⁻² and above, and above p
// for smaller p. These shares were measured with n elements in a filter for n (2 to 4 million questions each):
//
//	promised   0.03    0.01    10⁻³            10⁻⁴            10⁻⁵                 10⁻⁶
//	measured   0.035   0.011   1.4–1.9·10⁻³    1.8–3.4·10⁻⁴    2.5–9·10⁻⁵           3–8·10⁻⁶
//
// A number of bits that four divides gives the worst share. [SuggestProbability] finds a p that gives an odd number; both sides
// must use it. No call removes an element, and a filter with more than n elements answers "probably" more often.
//
// # In Redis
//
// <name> is the string of bits, {<name>}:config the hash with size, hashIterations, expectedInsertions and falseProbability.
// Neither key expires by itself. Init takes all the memory of a filter at once: 1.3 MB for a million elements at 0.01,
// and at most 640 MB, for which jemalloc has no closer size than 512 MB needs. Init checks first that the server has it: see [ErrTooLarge]. A filter that
// Redisson made takes its memory when elements are added, without a check. With more than 64 MB, Init and Count block the server for 60 ms and more, and a slot that
// moves carries the whole filter with it. [NewSharded] splits one filter into several.
//
// Add and Contains send one pipeline of BITFIELD (or BITFIELD_RO) and HMGET, with up to a thousand bits in a command. More
// than 65,536 elements go in several pipelines, one after the other. Where a pipeline is under way, the calls of other
// goroutines collect, and go together in the next. Where the whole filter costs less than the question for all these bits,
// Contains reads it by GETRANGE and looks here: so many elements at once cost the server a fraction. Both calls ask the
// master, as a replica can miss the latest elements.
//
// # Elements
//
// Redisson hashes an element as its codec encodes it. Java should use StringCodec, whose bytes are those of the element.
// This package supports Redisson's default codec, Kryo5, for strings: see [WithKryo5].
package bloom
