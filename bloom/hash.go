package bloom

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/minio/highwayhash"
)

// hashKey is the key that Redisson uses for HighwayHash.
var hashKey = []byte{
	0x15, 0x7c, 0x4a, 0x7f, 0xb9, 0x79, 0x37, 0x9e, 0x34, 0xc8, 0xed, 0x5c, 0x60, 0xc0, 0x9c, 0xf3,
	0x51, 0x72, 0xa2, 0xf3, 0x6b, 0x27, 0x82, 0x10, 0x95, 0x8e, 0xc1, 0xd0, 0x11, 0x6a, 0x6c, 0xf8,
}

// hash returns the two numbers from which the bits of an element are computed.
func hash(element []byte) (h1, h2 uint64) {
	sum := highwayhash.Sum128(element, hashKey)
	return binary.LittleEndian.Uint64(sum[:8]), binary.LittleEndian.Uint64(sum[8:])
}

// indexes appends the indexes of an element's bits to all.
func indexes(all []uint64, h1, h2, size, hashes uint64) []uint64 {
	x := h1
	for i := range hashes {
		all = append(all, x&math.MaxInt64%size)
		if i%2 == 0 {
			x += h2
		} else {
			x += h1
		}
	}
	return all
}

// shard returns the index of the filter for an element. The bits in that filter are computed from the same
// numbers, but from other parts of them.
func shard(h1, h2, shards uint64) uint64 {
	high, _ := bits.Mul64(h1^bits.RotateLeft64(h2, 29), shards)
	return high
}

// sizeOf returns the number of bits of a filter, and the number of bits per element, as Redisson computes them.
func sizeOf(n uint64, p float64) (size float64, hashes uint64) {
	size = math.Trunc(-float64(n) * math.Log(p) / (math.Ln2 * math.Ln2))
	return size, uint64(max(1, math.Floor(size/float64(n)*math.Ln2+0.5)))
}

// kryo5 returns a string as Redisson's default codec encodes it: the class, and then the string in one of two forms.
func kryo5(element []byte) (encoded []byte, ok bool) {
	if !utf8.Valid(element) {
		return nil, false
	}
	encoded = []byte{3}
	ascii := true
	for _, b := range element {
		ascii = ascii && b < utf8.RuneSelf
	}
	if ascii && len(element) >= 2 && len(element) <= 32 {
		encoded = append(encoded, element...)
		encoded[len(encoded)-1] |= 0x80
		return encoded, true
	}
	units := utf16.Encode([]rune(string(element)))
	length := uint64(len(units) + 1)
	first := byte(0x80 | length&0x3f)
	if length >>= 6; length > 0 {
		first |= 0x40
	}
	encoded = append(encoded, first)
	for length > 0 {
		b := byte(length & 0x7f)
		if length >>= 7; length > 0 {
			b |= 0x80
		}
		encoded = append(encoded, b)
	}
	for _, u := range units { // Kryo encodes each UTF-16 unit separately, even half of a surrogate pair
		switch {
		case u < 0x80:
			encoded = append(encoded, byte(u))
		case u < 0x800:
			encoded = append(encoded, byte(0xc0|u>>6), byte(0x80|u&0x3f))
		default:
			encoded = append(encoded, byte(0xe0|u>>12), byte(0x80|u>>6&0x3f), byte(0x80|u&0x3f))
		}
	}
	return encoded, true
}

// javaText returns p as Java's Double.toString writes it.
func javaText(p float64) string {
	if p >= 1e-3 {
		text := strconv.FormatFloat(p, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		return text
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(p, 'E', -1, 64), "E")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	n, _ := strconv.Atoi(exponent)
	return mantissa + "E" + strconv.Itoa(n)
}

// SuggestProbability returns a probability of at most p that gives a filter for n elements an odd
// number of bits. An odd number gives fewer false positives than an even one. Pass it to Init in Go and
// to tryInit in Java. If p already gives an odd number, or there is no such probability,
// SuggestProbability returns p.
func SuggestProbability(n uint64, p float64) float64 {
	if n == 0 || !(p > 0 && p < 1) {
		return p
	}
	size, _ := sizeOf(n, p)
	if size > maxSize-2 || uint64(size)%2 == 1 {
		return p
	}
	odd := math.Exp(-(size + 1.5) * math.Ln2 * math.Ln2 / float64(n))
	if is, _ := sizeOf(n, odd); odd > p || uint64(is)%2 == 0 {
		return p
	}
	return odd
}
