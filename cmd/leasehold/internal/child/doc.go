// Package child runs one command for a program that controls it. The command has its own
// process group, so that the program can stop all of its processes. It has the terminal, if
// there is one, and receives a signal when the program dies.
//
//	p, err := child.Start(argv, child.Options{Stopped: …, Continued: …})
//	if err != nil {
//		return child.StartCode(err) // 126 or 127
//	}
//	p.Signal(syscall.SIGTERM)       // to the whole group
//	status := <-p.Exited()          // the command itself has ended
//	p.Alive()                       // another process of its group is not
//
// # One command for each process
//
// On Unix, the package reaps all children of its process, even those that it did not
// start: an orphan of the command becomes a child of this process on Linux, and of the
// first process of a container on every system. A process must therefore run only one
// command at a time, and start no other processes.
//
// # The terminal
//
// Only one process group can read from a terminal, and it receives the signal of Ctrl-C. The terminal is the
// controlling terminal, /dev/tty: a program can read a password from it regardless of its standard input.
// If standard input and output of this process are the terminal, it gives the terminal to the command
// immediately. Otherwise, as in a pipeline, the command gets the terminal when it first uses it, and the system
// stops the command for that. Until then, the other programs of the pipeline keep the terminal. When the command
// is stopped (Ctrl-Z), this process stops with its whole group, as the shell that started it expects. When this
// process is continued, it gives the terminal to the command again, and continues it. When the command ends,
// this process takes the terminal back, and restores its earlier mode if a signal ended the command.
package child
