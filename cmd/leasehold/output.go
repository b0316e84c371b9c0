package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// output is the flag -o, the output format of a command.
type output struct{ format choice }

// addFlag gives cmd the flag. Every command supports table and json; more are the additional
// formats of cmd.
func (o *output) addFlag(cmd *cobra.Command, more ...string) {
	o.format.init("table", append([]string{"table", "json"}, more...)...)
	o.format.addFlag(cmd, "output", "o", "output format")
}

// tabular is a result that can be printed as a table for people. Its JSON is for programs.
type tabular interface {
	table(w io.Writer) error
}

// write prints v in the selected format.
func (o *output) write(w io.Writer, v tabular) error {
	if o.format.value != "json" {
		return v.table(w)
	}
	return writeJSON(w, v)
}

// writeJSON writes v as indented JSON.
func writeJSON(w io.Writer, v any) error { return encode(w, v, "  ") }

// unescaped matches the control characters that JSON does not escape, but a terminal executes.
var unescaped = regexp.MustCompile("[\u007f-\u009f]")

// encode writes v as JSON that is safe for a terminal.
func encode(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(unescaped.ReplaceAllFunc(b.Bytes(), func(c []byte) []byte { return fmt.Appendf(nil, `\u%04x`, []rune(string(c))[0]) }))
	return err
}

// choice is a flag with a fixed set of values.
type choice struct {
	value  string
	values []string
}

func (c *choice) init(value string, values ...string) { c.value, c.values = value, values }

// addFlag gives cmd the flag, which a shell can complete.
func (c *choice) addFlag(cmd *cobra.Command, name, letter, what string) {
	cmd.Flags().VarP(c, name, letter, what+": "+strings.Join(c.values, ", "))
	err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // there is no such flag
	}
}

// String returns the value.
func (c *choice) String() string { return c.value }

// Set sets the value, which must be one of values.
func (c *choice) Set(value string) error {
	if !slices.Contains(c.values, value) {
		return fmt.Errorf("must be one of %s", strings.Join(c.values, ", "))
	}
	c.value = value
	return nil
}

// Type returns the name of a value in the help.
func (c *choice) Type() string { return "word" }
