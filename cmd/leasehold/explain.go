package main

import (
	"crypto/x509"
	"errors"
	"net"
	"strings"

	"github.com/leasehold-go/leasehold/internal/dial"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
)

// explain returns the text of err, with advice if there is any. The library may have added the same advice.
func explain(err error) string {
	text := strings.TrimPrefix(err.Error(), "leasehold: ")
	text = strings.Replace(text, " ("+dial.ErrSentinelUser.Error()+")", "", 1) // only for programs
	text = strings.Replace(text, "new admin: WithOperator(", "--operator (", 1)
	if errors.Is(err, semaphore.ErrPermitCount) { // its advice is for programs
		text = strings.Replace(text, "handle wants", "--permits wants", 1)
		text = strings.Replace(text, "call Resize to change the count, or use a handle with 0 permits for any count", "use the same number, or change the count with leasehold resize", 1)
	}
	if do := advice(err); do != "" && !strings.Contains(text, do) {
		text += "; " + do
	}
	return text
}

// advice returns what to do about err, or "" if that is unknown.
func advice(err error) string {
	switch {
	case errors.Is(err, lock.ErrWrongType):
		return "use another name, or the type of lock that the other users of this name use (--shared and --exclusive are the two sides of one type)"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "set --cacert to the certificate authority of the server"
	case errors.Is(err, dial.ErrSentinelUser):
		return "set LEASEHOLD_SENTINEL_USERNAME and LEASEHOLD_SENTINEL_PASSWORD"
	}
	if reply, ok := rueidis.IsRedisErr(redisError(err)); ok {
		return adviceOnReply(reply.Error())
	}
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" {
		return "check that the server is running and the URL is correct"
	}
	return ""
}

// adviceOnReply returns what to do about an error reply of Redis.
func adviceOnReply(reply string) string {
	// Without --role, doctor does not check what the commands of operators need.
	const denied = "the user lacks a permission: run leasehold doctor --role operator, or --role application for leasehold run"
	for code, do := range map[string]string{
		"NOAUTH":                        "set the password in the URL or in REDISCLI_AUTH",
		"WRONGPASS":                     "check the user and the password",
		"NOPERM":                        denied,
		"The user executing the script": denied, // Redis before 7.2, without a code
		"ACL failure in script":         denied, // later servers, without a code
		"READONLY":                      "connect to the primary, or via Sentinel (?master_set=NAME)",
		"OOM":                           "the server is out of memory: raise maxmemory",
		"CLUSTERDOWN":                   "a primary of the cluster does not respond: restart it, or fail over; with cluster-require-full-coverage no, the others continue to serve",
		"LOADING":                       "the server is starting: retry",
		"MISCONF":                       "the server cannot save its data: check its log",
	} {
		if strings.Contains(reply, code) {
			return do
		}
	}
	return ""
}

// redisError returns the error reply of Redis in the tree of err, or nil if there is none.
func redisError(err error) error {
	for leaf := range leaves(err) {
		if _, ok := rueidis.IsRedisErr(leaf); ok {
			return leaf
		}
	}
	return nil
}

// leaves yields the errors in the tree of err that wrap no other.
func leaves(err error) func(yield func(error) bool) {
	return func(yield func(error) bool) { eachLeaf(err, yield) }
}

func eachLeaf(err error, yield func(error) bool) bool {
	switch e := err.(type) {
	case nil:
		return true
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !eachLeaf(err, yield) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return eachLeaf(inner, yield)
		}
	}
	return yield(err)
}
