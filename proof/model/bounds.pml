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
#define REQUESTS(k, n) (kk[k] == REQ && kn[k] == n && !copy[k])
#define PENDING(n) (REQUESTS(0, n) || REQUESTS(1, n) || REQUESTS(2, n) || REQUESTS(3, n) || REQUESTS(4, n) || REQUESTS(5, n) || REQUESTS(6, n) || REQUESTS(7, n)\
	|| REQUESTS(8, n) || REQUESTS(9, n) || REQUESTS(10, n) || REQUESTS(11, n) || REQUESTS(12, n) || REQUESTS(13, n) || REQUESTS(14, n) || REQUESTS(15, n)\
	|| REQUESTS(16, n) || REQUESTS(17, n) || REQUESTS(18, n) || REQUESTS(19, n) || REQUESTS(20, n) || REQUESTS(21, n) || REQUESTS(22, n) || REQUESTS(23, n)\
	|| REQUESTS(24, n) || REQUESTS(25, n) || REQUESTS(26, n) || REQUESTS(27, n) || REQUESTS(28, n) || REQUESTS(29, n) || REQUESTS(30, n) || REQUESTS(31, n))
#define ALIKE(c) 1
#else

/* Of equal callers, the first one that is away begins. */
#define ALIKE(c) (c < NP || cs[(c + NC - NP) % NC] != AWAY || HOME(c) != HOME((c + NC - NP) % NC))

#define REQUESTS(k, n) (kk[k] == REQ && kn[k] == n && !copy[k])

#if NK == 1
#define COMMANDS(e) e(0)
#define ROOM (kk[0] == 0)
#define PENDING(n) REQUESTS(0, n)
#elif NK == 2
#define COMMANDS(e) e(0) e(1)
#define ROOM (kk[0] == 0 || kk[1] == 0)
#define PENDING(n) (REQUESTS(0, n) || REQUESTS(1, n))
#elif NK == 3
#define COMMANDS(e) e(0) e(1) e(2)
#define ROOM (kk[0] == 0 || kk[1] == 0 || kk[2] == 0)
#define PENDING(n) (REQUESTS(0, n) || REQUESTS(1, n) || REQUESTS(2, n))
#elif NK == 4
#define COMMANDS(e) e(0) e(1) e(2) e(3)
#define ROOM (kk[0] == 0 || kk[1] == 0 || kk[2] == 0 || kk[3] == 0)
#define PENDING(n) (REQUESTS(0, n) || REQUESTS(1, n) || REQUESTS(2, n) || REQUESTS(3, n))
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

/* PROMPT: commands have replies, holders check their leases, unknown outcomes are reconciled, and local queues are woken. */
#ifndef TRACE
#define CMD_DUE(k) && !(kk[k] != 0 && !copy[k] && ka[k] > 0)
#define CALL_DUE(c) && !(cs[c] == HOLDS && trust[hn[c]] == 0)
#define NAME_DUE(n) && !(reconcile[n] != 0 && holder == n) && !(ph[n] == OFFERED && trust[n] == 0)
#define QUEUE_DUE(p) && !(size[p] > 0 && quiet[p])
#define PROMPT (true COMMANDS(CMD_DUE) CALLERS(CALL_DUE) NAMES(NAME_DUE) PROCESSES(QUEUE_DUE))
#endif

/* FINISHED: all calls have ended, and no command is in flight. */
#define CALL_OVER(c) && (cs[c] == AWAY || cs[c] == DEAD)
#define CMD_OVER(k) && kk[k] == 0
#define NAME_CERTAIN(n) && reconcile[n] == 0
#ifndef TRACE
#define FINISHED (true CALLERS(CALL_OVER) COMMANDS(CMD_OVER) NAMES(NAME_CERTAIN))
#endif
