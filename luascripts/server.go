package luascripts

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	serverInfo   = load("server_info")
	memoryPolicy = load("memory_policy")
)

// Evicts returns the policy by which the server evicts keys when its memory is full. It returns ""
// if the server does not evict keys or does not report a policy.
func Evicts(ctx context.Context, rdb rueidis.Client) (policy string, err error) {
	text, err := memoryPolicy.exec(ctx, rdb, nil, nil).ToString()
	if err != nil {
		return "", err
	}
	limited := false
	for line := range strings.Lines(text) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "maxmemory":
			limited = value != "0"
		case "maxmemory_policy":
			policy = value
		}
	}
	if !limited || policy == "noeviction" {
		return "", nil
	}
	return policy, nil
}

// Server is the identity and the role of a lock's server.
type Server struct {
	RunID  string        // changes with each start
	Uptime time.Duration // in whole seconds, with an error of up to one
	Role   string        // master or slave
}

// ServerInfo returns the identity and the uptime of the server that has a lock.
func ServerInfo(ctx context.Context, rdb rueidis.Client, k Keys) (Server, error) {
	text, err := serverInfo.exec(ctx, rdb, []string{k.Lock}, nil).ToString()
	if err != nil {
		return Server{}, err
	}
	var s Server
	uptime := -1
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "run_id":
			s.RunID = value
		case "uptime_in_seconds":
			if n, err := strconv.Atoi(value); err == nil {
				uptime = max(n, 0) // negative if the server's clock was moved backward since the start
			}
		case "role":
			s.Role = value
		}
	}
	if s.RunID == "" || uptime < 0 || s.Role == "" {
		return Server{}, &ReplyError{serverInfo.name, fmt.Sprintf("text of %d bytes without run_id, uptime_in_seconds or role", len(text))}
	}
	s.Uptime = time.Duration(uptime) * time.Second
	return s, nil
}
