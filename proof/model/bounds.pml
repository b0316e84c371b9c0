/* One event for each caller, command, owner string and process. Included by events.pml. */

#if NC == 1
#define CALLERS(e) e(0)
#elif NC == 2
#define CALLERS(e) e(0) e(1)
#elif NC == 3
#define CALLERS(e) e(0) e(1) e(2)
#elif NC == 4
#define CALLERS(e) e(0) e(1) e(2) e(3)
#elif NC >= 5
#define CALLERS(e) e(0) e(1) e(2) e(3) e(4)
#endif

#if NP == 1
#define PROCESSES(e) e(0)
#elif NP == 2
#define PROCESSES(e) e(0) e(1)
#elif NP == 3
#define PROCESSES(e) e(0) e(1) e(2)
#endif

#ifdef TRACE
#define ROOM 1
#define NAME(t) 1
#define ASKS(k, n) (kk[k] == ASK && kn[k] == n && !copy[k])
#define PENDING(n) (ASKS(0, n) || ASKS(1, n) || ASKS(2, n) || ASKS(3, n) || ASKS(4, n) || ASKS(5, n) || ASKS(6, n) || ASKS(7, n)\
	|| ASKS(8, n) || ASKS(9, n) || ASKS(10, n) || ASKS(11, n) || ASKS(12, n) || ASKS(13, n) || ASKS(14, n) || ASKS(15, n)\
	|| ASKS(16, n) || ASKS(17, n) || ASKS(18, n) || ASKS(19, n) || ASKS(20, n) || ASKS(21, n) || ASKS(22, n) || ASKS(23, n)\
	|| ASKS(24, n) || ASKS(25, n) || ASKS(26, n) || ASKS(27, n) || ASKS(28, n) || ASKS(29, n) || ASKS(30, n) || ASKS(31, n))
#define ALIKE(c) 1
#else

/* Of callers that are alike, the first that is away begins. */
#define ALIKE(c) (c < NP || cs[(c + NC - NP) % NC] != AWAY || HOME(c) != HOME((c + NC - NP) % NC))

#define ASKS(k, n) (kk[k] == ASK && kn[k] == n && !copy[k])

#if NK == 1
#define COMMANDS(e) e(0)
#define ROOM (kk[0] == 0)
#define PENDING(n) ASKS(0, n)
#elif NK == 2
#define COMMANDS(e) e(0) e(1)
#define ROOM (kk[0] == 0 || kk[1] == 0)
#define PENDING(n) (ASKS(0, n) || ASKS(1, n))
#elif NK == 3
#define COMMANDS(e) e(0) e(1) e(2)
#define ROOM (kk[0] == 0 || kk[1] == 0 || kk[2] == 0)
#define PENDING(n) (ASKS(0, n) || ASKS(1, n) || ASKS(2, n))
#elif NK == 4
#define COMMANDS(e) e(0) e(1) e(2) e(3)
#define ROOM (kk[0] == 0 || kk[1] == 0 || kk[2] == 0 || kk[3] == 0)
#define PENDING(n) (ASKS(0, n) || ASKS(1, n) || ASKS(2, n) || ASKS(3, n))
#endif

#if NN == 3
#define NAMES(e) e(0) e(1) e(2)
#define UNNAMED (ph[0] == UNUSED || ph[1] == UNUSED || ph[2] == UNUSED)
#elif NN == 4
#define NAMES(e) e(0) e(1) e(2) e(3)
#define UNNAMED (ph[0] == UNUSED || ph[1] == UNUSED || ph[2] == UNUSED || ph[3] == UNUSED)
#elif NN == 5
#define NAMES(e) e(0) e(1) e(2) e(3) e(4)
#define UNNAMED (ph[0] == UNUSED || ph[1] == UNUSED || ph[2] == UNUSED || ph[3] == UNUSED || ph[4] == UNUSED)
#endif
#define NAME(t) (t != NONE || UNNAMED)
#endif

/* PROMPT: commands are answered, holders look, doubts are settled, and lines look. */
#ifndef TRACE
#define CMD_DUE(k) && !(kk[k] != 0 && !copy[k] && ka[k] > 0)
#define CALL_DUE(c) && !(cs[c] == HOLDS && trust[hn[c]] == 0)
#define NAME_DUE(n) && !(doubt[n] != 0 && holder == n) && !(ph[n] == OFFERED && trust[n] == 0)
#define LINE_DUE(p) && !(size[p] > 0 && quiet[p])
#define PROMPT (true COMMANDS(CMD_DUE) CALLERS(CALL_DUE) NAMES(NAME_DUE) PROCESSES(LINE_DUE))
#endif

/* FINISHED: all calls that began have come to their end, and nothing is under way. */
#define CALL_OVER(c) && (cs[c] == AWAY || cs[c] == DEAD)
#define CMD_OVER(k) && kk[k] == 0
#define NAME_SURE(n) && doubt[n] == 0
#ifndef TRACE
#define FINISHED (true CALLERS(CALL_OVER) COMMANDS(CMD_OVER) NAMES(NAME_SURE))
#endif
