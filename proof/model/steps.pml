/*
 * With STEPS, a search writes each step of the server once, to the file named by $STEPS, as a line of numbers: the state
 * before, the command, the reply, and the state after. TestSteps in luascripts runs the scripts on the same states and
 * compares. Included by plain.pml, fair.pml and rw.pml.
 */
c_decl {
	\#include <stdio.h>
	\#include <stdlib.h>
	\#define STEPS_MOST (1 << 20)
	static unsigned char step_line[256];
	static int step_len, step_seen;
	static unsigned long long step_all[STEPS_MOST]; /* hashes of the steps written so far */
	static FILE *step_file;

	static void step_begin(void) { step_len = 0; }
	static void step_put(int n) { step_line[step_len++] = n; }
	static void step_puts(unsigned char *all, int n) { while (n-- > 0) step_put(*all++); }

	static void step_end(void)
	{
		unsigned long long h = 14695981039346656037ULL;
		unsigned at;
		int i;
		for (i = 0; i < step_len; i++) h = (h ^ step_line[i]) * 1099511628211ULL;
		h += !h;
		for (at = h >> 44; step_all[at] && step_all[at] != h; at = (at + 1) % STEPS_MOST) {}
		if (step_all[at] == h) return;
		step_all[at] = h;
		if (!step_file) step_file = fopen(getenv("STEPS"), "w");
		if (!step_file || ++step_seen > STEPS_MOST / 2) { perror("STEPS"); exit(2); }
		for (i = 0; i < step_len; i++) fprintf(step_file, "%d ", step_line[i]);
		fprintf(step_file, "\n");
		if (ferror(step_file)) { perror("STEPS"); exit(2); }
	}
}
