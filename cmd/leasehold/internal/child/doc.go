// Package child runs one command for a program that controls it: in a process
// group of its own, so that the program can stop all of it; with the terminal, if there is
// one; and with a signal when the program dies.
//
//	p, err := child.Start(argv, child.Options{Stopped: …, Continued: …})
//	if err != nil {
//		return child.StartCode(err) // 126 or 127
//	}
//	p.Signal(syscall.SIGTERM)       // to the whole group
//	status := <-p.Exited()          // the command itself is over
//	p.Alive()                       // another process of its group is not
//
// # One for each process
//
// On Unix the package reaps all children of its process, also those that it did not
// start: an orphan of the command becomes a child of this process on Linux, and
// of a container's first process anywhere. So a process has one command at a time, and starts
// no other.
//
// # The terminal
//
// Only one process group of a terminal may read from it, and gets the signal of Ctrl-C. The terminal is the
// controlling terminal, /dev/tty: a program can read a password from it whatever its standard input is.
// Where this process has the terminal on its standard input and output, it gives the
// terminal to the command at once. Otherwise, as in a pipeline, the command gets the terminal when it first
// uses it and the system stops it for that, so that other programs of the pipeline keep the terminal until then. When the
// command is stopped (Ctrl-Z), this process stops too, with all of its own group, as the shell that
// started it expects; when it is continued, it gives the terminal to the command again,
// and continues it. When the command is over, this process has the terminal again, in
// its earlier mode if a signal ended the command.
package child
