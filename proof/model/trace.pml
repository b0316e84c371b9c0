/*
 * With TRACE, the model follows histories of the real state machine (internal/lockstate), and
 * reports those that it cannot follow. Included by plain.pml, fair.pml and rw.pml. Each line of
 * the file named by $TRACE is a history: the number of processes, and the numbers of each event.
 * Five numbers describe the event. If the model has SETS, then 1 and sets of callers describe
 * the processes after it; 0 describes nothing. Owner strings, callers and commands are numbered
 * from 0 in the order of their creation; 255 is none.
 */
#ifndef SETS
#define SETS 0
#define WIDE 5
#define SAME
#else
#define WIDE (6 + SETS)
#define SAME alike();
#endif
c_decl {
	\#include <stdlib.h>
	\#include <string.h>
	\#define MOST_TRACES 20000
	\#define MOST_EVENTS 120
	static unsigned char tr[MOST_TRACES][MOST_EVENTS][WIDE], tr_ok[MOST_TRACES];
	static int tr_n, tr_processes[MOST_TRACES], tr_len[MOST_TRACES], tr_far[MOST_TRACES], tr_set[MOST_TRACES];

	static void tr_report(void)
	{
		int i, bad = 0;
		for (i = 0; i < tr_n; i++) {
			if (tr_ok[i]) continue;
			if (bad++ < 20) {
				unsigned char *e = tr[i][tr_far[i]];
				printf("REJECTED history %d at event %d: %d %d %d %d %d", i, tr_far[i], e[0], e[1], e[2], e[3], e[4]);
				if (tr_set[i]) printf(", set %d", tr_set[i]);
				printf("\n");
			}
		}
		printf("FOLLOWED %d of %d histories\n", tr_n - bad, tr_n);
	}

	static int tr_load(void)
	{
		static char localQueue[65536];
		FILE *f = fopen(getenv("TRACE"), "r");
		if (!f) { perror("TRACE"); exit(2); }
		while (tr_n < MOST_TRACES && fgets(localQueue, sizeof localQueue, f)) {
			int n = 0;
			char *p = localQueue, *end;
			tr_processes[tr_n] = strtol(p, &p, 10);
			for (;;) {
				long v = strtol(p, &end, 10);
				if (end == p) break;
				p = end;
				if (n < WIDE * MOST_EVENTS) tr[tr_n][n / WIDE][n % WIDE] = v;
				n++;
			}
			if (n / WIDE > MOST_EVENTS) continue;
			tr_len[tr_n++] = n / WIDE;
		}
		fclose(f);
		atexit(tr_report);
		return tr_n;
	}

	static int tr_is(int t, int at, int e)
	{
		if (at > tr_far[t]) { tr_far[t] = at; tr_set[t] = 0; }
		return at < tr_len[t] && tr[t][at][0] == e;
	}

	/* the subset of callers whose value in all is this one */
	static int tr_those(unsigned char *all, int says, int callers)
	{
		int c, set = 0;
		for (c = 0; c < NC; c++) if (all[c] == says && (callers >> c & 1)) set |= 1 << c;
		return set;
	}

	/* the set of the callers in all */
	static int tr_named(unsigned char *all, int n)
	{
		int set = 0;
		while (n-- > 0) if (all[n] != NONE) set |= 1 << all[n];
		return set;
	}

	/* whether the history has the same sets */
	static int tr_alike(int t, int at, int *sets)
	{
		int i;
		for (i = 0; i < SETS && tr[t][at][5]; i++) {
			if (tr[t][at][6 + i] == (sets[i] & 255)) continue;
			tr_set[t] = i + 1;
			return 0;
		}
		return 1;
	}
}

short which, at, traces;
byte processes, ta, tb, tc, td, numbered;
bit ok = 1;

#define LATE(s, most) late = (tc == 1)
#define AGE(s) (late -> LEASE : ka[s])
#define ON(e) atomic { c_expr { (tr_is(now.which, now.at, e)) } -> \
	c_code { now.ta = tr[now.which][now.at][1]; }; c_code { now.tb = tr[now.which][now.at][2]; }; c_code { now.tc = tr[now.which][now.at][3]; }; c_code { now.td = tr[now.which][now.at][4]; }; \
	d_step {
#define EXPECT(x) if :: (x) -> skip :: else -> ok = 0 fi;
#define END SAME at++; m = 0; ta = 0; tb = 0; tc = 0; td = 0 }; ok }
#define CLOSE m = 0 }
#define OF_CALLERS(event) event(ta)
#define OF_COMMANDS(event) event(ta)
#define OF_NAMES(event) event(ta)
#define CHOOSE c_code { now.traces = tr_load(); }; do :: which < traces - 1 -> which++ :: break od; c_code { now.processes = tr_processes[now.which]; };
