package client_test

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/client"
)

// Whatever stands around a password in a URL: no error repeats it, and a URL that can be read has the options of Open.
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
