/*
 * With TRACE, the model follows histories of the real state machine (internal/place), and
 * says which of them it cannot follow. Included by plain.pml. Each line of the file that
 * $TRACE names is a history: numbers, four for each event. Owner strings, callers and
 * commands count from 0 in the order in which they come to be; 255 is none.
 */
c_decl {
	\#include <stdlib.h>
	\#include <string.h>
	\#define MOST_TRACES 20000
	\#define MOST_EVENTS 120
	static unsigned char tr[MOST_TRACES][MOST_EVENTS][4], tr_ok[MOST_TRACES];
	static int tr_n, tr_len[MOST_TRACES], tr_far[MOST_TRACES];

	static void tr_report(void)
	{
		int i, bad = 0;
		for (i = 0; i < tr_n; i++) {
			if (tr_ok[i]) continue;
			if (bad++ < 20) {
				unsigned char *e = tr[i][tr_far[i]];
				printf("REJECTED history %d at event %d: %d %d %d %d\n", i, tr_far[i], e[0], e[1], e[2], e[3]);
			}
		}
		printf("FOLLOWED %d of %d histories\n", tr_n - bad, tr_n);
	}

	static int tr_load(void)
	{
		static char line[65536];
		FILE *f = fopen(getenv("TRACE"), "r");
		if (!f) { perror("TRACE"); exit(2); }
		while (tr_n < MOST_TRACES && fgets(line, sizeof line, f)) {
			int n = 0;
			char *p = line, *end;
			for (;;) {
				long v = strtol(p, &end, 10);
				if (end == p) break;
				p = end;
				if (n < 4 * MOST_EVENTS) tr[tr_n][n / 4][n % 4] = v;
				n++;
			}
			if (n / 4 > MOST_EVENTS) continue;
			tr_len[tr_n++] = n / 4;
		}
		fclose(f);
		atexit(tr_report);
		return tr_n;
	}

	static int tr_is(int t, int at, int e)
	{
		if (at > tr_far[t]) tr_far[t] = at;
		return at < tr_len[t] && tr[t][at][0] == e;
	}
}

short which, at, traces;
byte ta, tb, tc, sent;
bit ok = 1;

#define LATE(s, most) late = (tc == 1)
#define AGE(s) (late -> LEASE : 0)
#define ON(e) atomic { c_expr { (tr_is(now.which, now.at, e)) } -> \
	c_code { now.ta = tr[now.which][now.at][1]; }; c_code { now.tb = tr[now.which][now.at][2]; }; c_code { now.tc = tr[now.which][now.at][3]; }; \
	d_step {
#define EXPECT(x) if :: (x) -> skip :: else -> ok = 0 fi;
#define END at++; m = 0; ta = 0; tb = 0; tc = 0 }; ok }
#define CLOSE m = 0 }
#define OF_CALLERS(event) event(ta)
#define OF_COMMANDS(event) event(ta)
#define OF_NAMES(event) event(ta)
#define CHOOSE c_code { now.traces = tr_load(); }; do :: which < traces - 1 -> which++ :: break od;
#define EXPIRES :: ON(14) holder != NONE; gone(); END
