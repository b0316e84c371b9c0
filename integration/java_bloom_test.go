//go:build linux

package integration_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/bloom"
)

// Java and Go fill filters with the same elements. The bits are the same, and each side finds the other's elements.
func TestJavaBloom(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		elements := []string{"", "x", "hello", "ä", "€uro", "🔒 and 🔑", "a b", strings.Repeat("x", 32), strings.Repeat("x", 33), strings.Repeat("y", 63), strings.Repeat("z", 70), strings.Repeat("ö", 5000)}
		for i := range 500 {
			elements = append(elements, fmt.Sprint("element ", i))
		}
		encoded := func(texts []string) (all [][]byte) {
			for _, text := range texts {
				all = append(all, []byte(text))
			}
			return all
		}
		for _, codec := range []struct {
			name string
			kryo bool
			opts []bloom.Option
		}{{"string", false, nil}, {"kryo5", true, []bloom.Option{bloom.WithKryo5()}}} {
			for _, p := range []float64{0.03, 0.0001, 1e-6} {
				t.Run(fmt.Sprint(codec.name, " ", p), func(t *testing.T) {
					java := func(do, name string, q javaRequest) javaRequest {
						q.Do, q.Name, q.Kryo = "bloom."+do, name, codec.kryo
						return q
					}
					theirs, ours := fmt.Sprint("java", codec.name, p), fmt.Sprintf("{go}%s%v", codec.name, p)
					if !asks[bool](t, s.java, java("tryInit", theirs, javaRequest{N: 1000, P: p})) {
						t.Fatal("Java could not make its filter")
					}
					// Init of each side accepts the filter of the other.
					if created, err := s.c.NewBloomFilter(theirs, codec.opts...).Init(t.Context(), 1000, p); created || err != nil {
						t.Fatalf("init of Java's: %v, %v", created, err)
					}
					if created, err := s.c.NewBloomFilter(ours, codec.opts...).Init(t.Context(), 1000, p); !created || err != nil {
						t.Fatalf("init of Go's: %v, %v", created, err)
					}
					if asks[bool](t, s.java, java("tryInit", ours, javaRequest{N: 1000, P: p})) {
						t.Error("Java created Go's filter again")
					}
					config := func(name string) []string {
						t.Helper()
						all, err := s.rdb.Do(t.Context(), s.rdb.B().Hmget().Key(configKey(name)).Field("size", "hashIterations", "expectedInsertions", "falseProbability").Build()).AsStrSlice()
						if err != nil {
							t.Fatal(err)
						}
						return all
					}
					if a, b := config(theirs), config(ours); !slices.Equal(a, b) {
						t.Errorf("Java's configuration is %q, Go's %q", a, b)
					}

					f, g := s.c.NewBloomFilter(ours, codec.opts...), s.c.NewBloomFilter(theirs, codec.opts...)
					added, err := f.Add(t.Context(), encoded(elements)...)
					if err != nil {
						t.Fatal(err)
					}
					if got := asks[int64](t, s.java, java("add", theirs, javaRequest{Elements: elements})); got != int64(added) {
						t.Errorf("Java added %d, Go %d", got, added)
					}
					bits := func(name string) string {
						t.Helper()
						text, err := s.rdb.Do(t.Context(), s.rdb.B().Get().Key(name).Build()).ToString()
						if err != nil {
							t.Fatal(err)
						}
						return strings.TrimRight(text, "\x00") // Go allocates all memory of its filter at once
					}
					if bits(theirs) != bits(ours) {
						t.Error("the bits differ")
					}
					queries := append(slices.Clone(elements), "never", "added", "by", "anybody")
					fromJava := asks[[]bool](t, s.java, java("contains", ours, javaRequest{Elements: queries}))
					fromGo, err := g.Contains(t.Context(), encoded(queries)...)
					if err != nil || !slices.Equal(fromJava, fromGo) || slices.Contains(fromGo[:len(elements)], false) {
						t.Errorf("Java: %v, Go: %v, %v", fromJava, fromGo, err)
					}
					count, err := g.Count(t.Context())
					if got := asks[int64](t, s.java, java("count", ours, javaRequest{})); err != nil || got != count {
						t.Errorf("Java counts %d, Go %d, %v", got, count, err)
					}
				})
			}
		}
		// Redisson returns false for other parameters, and then ignores them. Go returns an error.
		if _, err := s.c.NewBloomFilter("javastring0.03").Init(t.Context(), 1000, 0.02); !errors.Is(err, bloom.ErrConfigMismatch) {
			t.Errorf("other parameters: %v", err)
		}
	})
}

// configKey returns the key of a filter's configuration.
func configKey(name string) string {
	if strings.Contains(name, "{") {
		return name + ":config"
	}
	return "{" + name + "}:config"
}
