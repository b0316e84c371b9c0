// Package exampletest starts a server in memory for the examples of the other packages.
package exampletest

import (
	"context"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/redis/rueidis"
)

// Server is a server in memory.
type Server struct {
	mini    *miniredis.Miniredis
	clients []*client.Client
	rdbs    []rueidis.Client
}

// Start starts a server.
func Start() *Server {
	mini, err := memredis.Start()
	if err != nil {
		log.Fatal(err)
	}
	return &Server{mini: mini}
}

// URL returns the server's URL.
func (s *Server) URL() string { return "redis://" + s.mini.Addr() }

// Client returns a client of the server, as another process would have it.
func (s *Server) Client(opts ...client.Option) *client.Client {
	c, err := client.Open(context.Background(), s.URL(), opts...)
	if err != nil {
		log.Fatal(err)
	}
	s.clients = append(s.clients, c)
	return c
}

// Redis returns a rueidis client of the server.
func (s *Server) Redis() rueidis.Client {
	option, err := client.ParseURL(s.URL())
	if err != nil {
		log.Fatal(err)
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		log.Fatal(err)
	}
	s.rdbs = append(s.rdbs, rdb)
	return rdb
}

// Close closes the server and its clients.
func (s *Server) Close() {
	for _, c := range s.clients {
		c.Close(context.Background())
	}
	for _, rdb := range s.rdbs {
		rdb.Close()
	}
	s.mini.Close()
}
