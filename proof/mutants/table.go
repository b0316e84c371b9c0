package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// The table stands between these lines of docs/GUARDS.md.
const (
	page  = "docs/GUARDS.md"
	begin = "<!-- mutants: begin; `make mutate` writes what follows -->\n"
	end   = "<!-- mutants: end -->\n"
)

// write writes the table, and forgets results that no mutation asks for any more.
func (o options) write(all []mutation, results *known) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, fine := strings.Cut(rest, end)
	if !ok || !fine {
		return fmt.Errorf("%s has no line %q, or none %q after it", page, begin, end)
	}
	table, needed, err := tableOf(all, results)
	if err != nil {
		return err
	}
	results.mu.Lock()
	defer results.mu.Unlock()
	if err := results.saveLocked(needed); err != nil {
		return err
	}
	return os.WriteFile(page, []byte(before+begin+"\n"+table+"\n"+end+after), 0o644)
}

// tableOf returns the table, and which results are in it.
func tableOf(all []mutation, results *known) (table string, needed map[string]bool, err error) {
	needed = make(map[string]bool)
	caught, survived, same, unknown := 0, 0, 0, 0
	var rows strings.Builder
	file := ""
	for _, m := range all {
		source, err := os.ReadFile(m.file)
		if err != nil {
			return "", nil, err
		}
		key := m.key(source)
		needed[key] = true
		r, ok := results.get(key)
		outcome := ""
		switch {
		case m.same != "":
			same++
			outcome = "none can: " + m.same
		case !ok:
			unknown++
			outcome = "not run yet"
		case r.what == "caught":
			caught++
			outcome = "`" + r.test + "`"
		default:
			survived++
			outcome = "**none**"
		}
		if m.file != file {
			file = m.file
			fmt.Fprintf(&rows, "\n`%s`\n\n| taken away | at stake | test that went red |\n|---|---|---|\n", file)
		}
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", cell(m.guard), cell(m.promise), cell(outcome))
	}
	head := fmt.Sprintf("%d mutations: %d were caught, %d cannot be noticed, %d survived, %d have not been run since their file changed.\n", len(all), caught, same, survived, unknown)
	return head + rows.String(), needed, nil
}

// caughtBefore reads, from the table that was written last, which test went red: by file and guard, with a space between.
func caughtBefore(name string) (map[string]string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	caught, file := make(map[string]string), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := titled.FindStringSubmatch(line); m != nil {
			file = m[1]
		} else if m := noticed.FindStringSubmatch(line); m != nil && file != "" {
			caught[file+" "+strings.ReplaceAll(m[1], "\\|", "|")] = m[2]
		}
	}
	return caught, nil
}

var (
	titled  = regexp.MustCompile("^`([a-z_/]+\\.(?:lua|go))`$")
	noticed = regexp.MustCompile("^\\| (.*) \\| [^|]* \\| `(Test\\w+)[^`]*` \\|$")
)

// cell returns text as it stands in a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
