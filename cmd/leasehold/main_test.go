package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/spf13/pflag"
)

func TestMain(m *testing.M) {
	redistest.VerifyTestMain(mainTests{m})
}

func TestRun_calledTheWrongWay(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"show"},
		{"demo", "now"},
		{"demo", "--fast"},
		{"demo", "--url"},
		{"demo", "--only", "queue,queues"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != exitUsage {
			t.Errorf("leasehold %s: exit code %d, want %d", strings.Join(args, " "), code, exitUsage)
		}
		if stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("leasehold %s: %q on stdout and %q on stderr, want a message on stderr alone",
				strings.Join(args, " "), &stdout, &stderr)
		}
	}
}

// The error of a missing or superfluous argument shows the usage of the command. The error of an unknown command shows a similar one.
func TestRun_arguments(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"inspect":              "leasehold: 0 arguments: use leasehold inspect NAME\n",
		"unlock a b":           "leasehold: 2 arguments: use leasehold unlock NAME\n",
		"watch":                "leasehold: 0 arguments: use leasehold watch NAME...\n",
		"ls a b":               "leasehold: 2 arguments: use leasehold ls [PATTERN]\n",
		"doctor redis://u:p@h": "leasehold: 1 argument: use leasehold doctor\n",
		"run a":                "leasehold: no command after --: use leasehold run NAME -- COMMAND\n",
		"insepct a":            "leasehold: unknown command \"insepct\" for \"leasehold\": did you mean inspect?\n",
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &stdout, &stderr); code != exitUsage || !strings.HasPrefix(stderr.String(), want) {
			t.Errorf("leasehold %s: exit code %d, %q", args, code, &stderr)
		}
	}
}

func TestRun_help(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--help"}, {"demo", "--help"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != exitOK {
			t.Errorf("leasehold %s: exit code %d, want %d: %s", strings.Join(args, " "), code, exitOK, &stderr)
		}
		if !strings.Contains(stdout.String(), "leasehold demo") && !strings.Contains(stdout.String(), "demo ") {
			t.Errorf("leasehold %s does not say how to start the demo:\n%s", strings.Join(args, " "), &stdout)
		}
	}
}

func TestRun_noServer(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{
		"redis://user:secret@127.0.0.1:1":    exitFailure, // no server listens there
		"redis://user:secret@127.0.0.1:port": exitUsage,
		"http://user:secret@127.0.0.1":       exitUsage,
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{"demo", "--url", url}, &stdout, &stderr); code != want {
			t.Errorf("--url %s: exit code %d, want %d", url, code, want)
		}
		if stderr.Len() == 0 {
			t.Errorf("--url %s: no message", url)
		}
		if strings.Contains(stdout.String()+stderr.String(), "secret") {
			t.Errorf("--url %s: the password is shown:\n%s%s", url, &stdout, &stderr)
		}
	}
}

// All help texts have the same form: a short text that fits into a list, and the exit codes. The help of a flag is a noun phrase.
func TestHelp(t *testing.T) {
	t.Parallel()
	n := 0
	for _, cmd := range leasehold().Commands() {
		if len(cmd.Short) > 60 || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q is too long, or a sentence", cmd.Name(), cmd.Short)
		}
		if cmd.Long != "" && !strings.Contains(cmd.Long, "\nExit codes") {
			t.Errorf("%s: the help has no exit codes", cmd.Name())
		}
		for line := range strings.Lines(cmd.Long) {
			if width := len([]rune(strings.TrimSuffix(line, "\n"))); width > 100 {
				t.Errorf("%s: %d columns: %s", cmd.Name(), width, line)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			if strings.HasSuffix(f.Usage, ".") || regexp.MustCompile(`^(how|what|which|who|if|do not|the) `).MatchString(f.Usage) || strings.Contains(f.Usage, "(default: ") {
				t.Errorf("%s --%s: %q is no noun phrase with (default d)", cmd.Name(), f.Name, f.Usage)
			}
		})
	}
	if n < 80 {
		t.Errorf("%d flags were found", n)
	}
}
