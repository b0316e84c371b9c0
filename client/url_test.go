package client_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/redis/rueidis"
)

func TestParseURL_errors(t *testing.T) {
	for url, text := range map[string]string{
		"127.0.0.1:6379":            "want redis://host:port",
		"localhost:6379":            "want redis://host:port",
		"redis.example":             "want redis://host:port",
		"":                          "the URL is empty: want redis://host:port",
		"secret@localhost:6379":     "want redis://host:port",
		"http://127.0.0.1:6379":     `"http": want redis://host:port`,
		"redis://user:sec ret@host": "percent-encoded",
		"redis://127.0.0.1:6379/x":  "invalid database number",

		"redis:127.0.0.1:6379":                     "want redis://host:port",
		"redis://127.0.0.1:6379?tls=true":          `unknown URL parameter "tls"; for TLS the URL begins with rediss://`,
		"redis://user:sec@127.0.0.1:6379?pool=9":   `unknown URL parameter "pool"; the known parameters are addr, client_cache, client_name, db, `,
		"redis://127.0.0.1:6379?DB=1":              `"DB"`,
		"redis://127.0.0.1:6379?;tls=true":         "cannot be read",
		"redis://user:12?sec=x&y@127.0.0.1:6379":   "percent-encoded",
		"redis://user:12#sec@127.0.0.1:6379":       "%23",
		"redis://user:12#sec ret@127.0.0.1:6379":   "%23",
		"redis://user:sec#ret@127.0.0.1:6379":      "%23",
		"unix:///run/redis.sock#sec":               "%23",
		"redis://127.0.0.1:6379?skip_verify=true":  "skip_verify is for TLS only",
		"redis://a:26379?master_set=m&addr=b":      "addr must be host:port",
		"redis://127.0.0.1:6379?protocol=4":        "protocol must be 2 or 3",
		"redis://127.0.0.1:6379?client_cache=sec":  "client_cache must be 0",
		"redis://127.0.0.1:6379?max_retries=3":     "max_retries must be 0",
		"redis://127.0.0.1:26379?master_set=":      "master_set must be",
		"redis://127.0.0.1:6379?dial_timeout=0s":   "dial_timeout must be a positive duration",
		"redis://127.0.0.1:6379?write_timeout=-1s": "write_timeout must be a positive duration",
		"redis://127.0.0.1:6379?write_timeout=x":   "invalid write timeout",
		"unix:///run/redis.sock?addr=b:1":          "addr is for TCP only",
		"unix:///run/redis.sock?master_set=m":      "master_set is for TCP only",
		"unix://run/redis.sock":                    "three slashes",
		"redis://127.0.0.1:6379?db=1&db=2":         "parameter db is given 2 times",
		"redis://127.0.0.1:6379/1?db=2":            "omit one of them",
	} {
		_, err := client.ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: got %v, want %q in it", url, err, text)
		}
	}
}

// A trailing slash does not select a database.
func TestParseURL_slash(t *testing.T) {
	for url, db := range map[string]int{"redis://127.0.0.1:6379/": 0, "rediss://user:%2F@redis.example/?db=3": 3} {
		o, err := client.ParseURL(url)
		if err != nil || o.SelectDB != db || strings.Contains(o.InitAddress[0], "/") || o.Password != "" && o.Password != "/" {
			t.Errorf("%s: %v, database %d at %q", url, err, o.SelectDB, o.InitAddress)
		}
	}
}

// Every parameter that rueidis supports is accepted.
func TestParseURL_parameters(t *testing.T) {
	for _, url := range []string{
		"redis://127.0.0.1:6379?db=1&dial_timeout=1s&write_timeout=2s&client_name=a@b&client_cache=0&max_retries=0&protocol=2",
		"rediss://127.0.0.1:6379/1?protocol=3&skip_verify&client_name=",
		"redis://a:26379?master_set=m&addr=b:26379&addr=:26380&addr=[::1]:26379",
		"unix://user:password@/run/redis.sock?db=1",
		"valkeys://user:%23%3F%2F@127.0.0.1?skip_verify=false",
	} {
		if _, err := client.ParseURL(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// For a password anywhere in a URL, no error contains it. A URL that can be parsed has the options of Open.
func FuzzParseURL(f *testing.F) {
	for _, u := range [][2]string{
		{"redis://user:", "@127.0.0.1:6379/0"}, {"rediss://:", "@[::1]:6379?skip_verify=true"}, {"unix://user:", "@/run/redis.sock?db=x"}, {"redis://user:%zz", "@host/99999999999999999999"},
		{"valkeys://u:", "@h?master_set=m&addr=a:1&addr=b:2"}, {"redis://", ""}, {"", ""}, {"http://u:", "@h"}, {"redis://u:", "@h?dial_timeout=x&protocol=9"}, {"redis:/u:", "@@h"}, {"redis://h/?password=", ""},
	} {
		f.Add(u[0], u[1])
	}
	const password = "hunter2-hunter2"
	f.Fuzz(func(t *testing.T, before, after string) {
		text := before + password + after
		option, err := client.ParseURL(text)
		switch {
		case err == nil && (option.ClientName == "" || !option.DisableCache || option.ConnWriteTimeout == 0):
			t.Errorf("%q: %+v", text, option)
		case err != nil && strings.Contains(after, "@") && strings.HasSuffix(before, ":") && strings.Contains(err.Error(), password):
			t.Errorf("%q: the error has the password: %v", text, err)
		}
	})
}

// rueidis uses a separate dialer for Sentinels, so it gets the same settings unless it has its own.
func TestParseURL_sentinelDialer(t *testing.T) {
	o, err := client.ParseURL("redis://a:26379?master_set=m&dial_timeout=7s")
	if err != nil {
		t.Fatal(err)
	}
	if d := o.Sentinel.Dialer; d.Timeout != 7*time.Second || d.KeepAlive != o.Dialer.KeepAlive || d.KeepAlive <= 0 || !d.KeepAliveConfig.Enable {
		t.Errorf("%+v", d)
	}
	if o, err = client.ParseURL("redis://a:26379?master_set=m"); err != nil || o.Sentinel.Dialer.Timeout != rueidis.DefaultDialTimeout {
		t.Errorf("%v, %v", o.Sentinel.Dialer.Timeout, err)
	}
}
