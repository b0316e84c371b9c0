/* The events: what may happen next. Included by plain.pml. */

/* ---- calls ---- */

#define EV_START(C) \
:: ON(1) cs[C] == AWAY && !dead[HOME(C)] && ALIKE(C) && MAY_BEGIN; \
	SAY("caller %d comes", C) \
	calls++; \
	p = HOME(C); \
	if :: size[p] == 0 -> awake[p] = (held[p] == NONE); quiet[p] = 0 :: else fi; \
	cs[C] = WAITS; localQueue[p * NC + size[p]] = C; size[p]++; \
	if :: held[p] != NONE && ALARMS -> alarm[p] = 1 :: else fi; \
	END

/* The first waiter of a local queue sends a request for the ticket of the queue. */
#define EV_REQUEST(C) \
:: ON(2) cs[C] == WAITS && FIRST(C) && awake[HOME(C)] && !inFlight[C] && ROOM && NAME(ticket[HOME(C)]) \
	&& (offered[HOME(C)] == NONE || !LIVES(offered[HOME(C)])); \
	SAY("caller %d sends a request", C) \
	p = HOME(C); \
	offered[p] = NONE; \
	if :: ticket[p] == NONE -> fresh(p); ticket[p] = q :: else fi; \
	slot(); \
	kk[k] = REQ; kn[k] = ticket[p]; kc[k] = C; kg[k] = passed[ticket[p]]; \
	requested[C] = 1; inFlight[C] = 1; quiet[p] = 0; \
	EXPECT(ticket[p] == tb) \
	END

/* The first waiter of a local queue takes the lock that is offered to the queue. */
#define EV_TAKE(C) \
:: ON(3) cs[C] == WAITS && FIRST(C) && awake[HOME(C)] && !inFlight[C] && offered[HOME(C)] != NONE && LIVES(offered[HOME(C)]); \
	SAY("caller %d takes the lock that is offered to its queue", C) \
	n = offered[HOME(C)]; offered[HOME(C)] = NONE; \
	ph[n] = HELD; \
	EXPECT(n == tb) \
	hold(C, n); \
	END

/* The wait of a caller ends. If it has a request in flight, the reply is ignored. */
#define EV_CANCEL(C) \
:: ON(4) cs[C] == WAITS && MAY_CANCEL; \
	SAY("the wait of caller %d ends", C) \
	CANCELLED; \
	p = HOME(C); \
	for (m : 0 .. NK - 1) { if :: kk[m] == REQ && kc[m] == C -> kc[m] = NONE; ka[m] = 0 :: else fi } \
	leaveBehind(C); \
	cs[C] = AWAY; quit(C); \
	END \
:: ON(4) cs[C] == WAITS && MAY_CANCEL && FIRST(C) && awake[HOME(C)] && !inFlight[C] && offered[HOME(C)] != NONE; \
	SAY("the wait of caller %d ends", C) \
	CANCELLED; \
	n = offered[HOME(C)]; offered[HOME(C)] = NONE; /* it was about to take the lock; if that is lost by now, it is released again */ \
	fail(n); \
	cs[C] = AWAY; quit(C); \
	END

/* A caller releases its hold: the lock is handed off inside the process, or released in Redis. */
#define EV_UNLOCK(C) \
:: ON(5) cs[C] == HOLDS && trust[hn[C]] > 0 && MAY_PASS(hn[C], HOME(C)); \
	SAY("caller %d unlocks", C) \
	n = hn[C]; hn[C] = NONE; cs[C] = AWAY; \
	passed[n]++; traced[n] = 0; \
	issue(); token[n] = issued; \
	offer(n); \
	EXPECT(tb == 254) \
	END \
:: ON(5) cs[C] == HOLDS && trust[hn[C]] > 0 && ROOM \
	&& (size[HOME(C)] == 0 || offered[HOME(C)] != NONE || NAME(ticket[HOME(C)])); \
	SAY("caller %d unlocks", C) \
	n = hn[C]; hn[C] = NONE; cs[C] = AWAY; p = HOME(C); \
	ph[n] = OVER; STOP(n); \
	slot(); \
	kk[k] = REL; kn[k] = n; kg[k] = passed[n]; \
	if \
	:: size[p] > 0 && offered[p] == NONE -> \
		if :: ticket[p] == NONE -> fresh(p); ticket[p] = q :: else fi; \
		kh[k] = ticket[p]; traced[ticket[p]] = 1 \
	:: else \
	fi; \
	EXPECT(kh[k] == tb) \
	END

/* ---- commands ---- */

/* The server executes a command, in one step. */
#define EV_RUN(K) \
:: ON(6) kk[K] != 0 && kr[K] == 0; \
	SAY("command %d is executed", K) \
	serve(K, 0); \
	EXPECT(kr[K] == tb) \
	if :: copy[K] -> drop(K) :: else fi; \
	END \
:: ON(6) kk[K] == REL && kr[K] == 0 && holder == kn[K] && (kh[K] != NONE || queueSize > 0); \
	SAY("command %d is executed", K) \
	serve(K, 1); \
	EXPECT(kr[K] == tb) \
	if :: copy[K] -> drop(K) :: else fi; \
	END

/* The reply to a request arrives. */
#define EV_REPLY_REQ(K) \
:: ON(7) kk[K] == REQ && kr[K] != 0 && !copy[K] && kc[K] != NONE; \
	SAY("the reply to request %d arrives", K) \
	inFlight[kc[K]] = 0; \
	b = 0; \
	if :: kr[K] == GRANT -> granted(K) :: else -> refused(kn[K]) fi; \
	c = kc[K]; n = kn[K]; \
	EXPECT((b -> c : NONE) == tb) \
	if :: b -> hold(c, n) :: else fi; \
	drop(K); \
	END \
:: ON(7) kk[K] == REQ && kr[K] != 0 && !copy[K] && kc[K] == NONE; \
	SAY("the reply to request %d arrives", K) \
	unheard(K); \
	drop(K); \
	END

#define EV_REPLY_REL(K) \
:: ON(8) kk[K] == REL && kr[K] != 0 && !copy[K]; \
	SAY("the reply to release %d arrives", K) \
	LATE(K, OFFER); \
	if :: kh[K] != NONE -> grantedNext(K) :: else fi; \
	n = kn[K]; \
	unhold(n); \
	if :: uncertain[n] -> reconcile[n] = 2 :: else fi; \
	drop(K); \
	END

/* A connection breaks: the caller of the command gets an error, and the command was executed,
   or never is, or a duplicate of it is executed late. */
#define EV_BREAK(K) \
:: ON(9) kk[K] != 0 && !copy[K] && FAULT; \
	SAY("the connection of command %d breaks", K) \
	broke(K); \
	drop(K); \
	faults++; \
	EXPECT(tb == 0) \
	END \
:: ON(9) kk[K] != 0 && !copy[K] && kr[K] == 0 && FAULT; \
	SAY("the connection of command %d breaks", K) \
	broke(K); \
	copy[K] = 1; kc[K] = NONE; ka[K] = 0; \
	faults++; \
	EXPECT(tb == 1) \
	END

/* A call stops waiting for its reply, and continues. */
#define EV_TIMEOUT(K) \
:: ON(10) kk[K] == REQ && kc[K] != NONE && FAULT; \
	SAY("the caller stops waiting for request %d", K) \
	inFlight[kc[K]] = 0; kc[K] = NONE; ka[K] = 0; \
	faults++; \
	END

/* The wait of a caller ends at the moment when the lock is granted to it. */
#define EV_CROSS(K) \
:: ON(11) kk[K] == REQ && kc[K] != NONE && kr[K] == GRANT && MAY_CANCEL; \
	SAY("the wait ends when the reply to request %d arrives", K) \
	CANCELLED; \
	c = kc[K]; n = kn[K]; p = HOME(c); \
	drop(K); \
	mayRun(n); \
	leaveBehind(c); \
	cs[c] = AWAY; quit(c); \
	END

/* ---- acquisitions ---- */

/* The watchdog detects that the lease has expired; or a hold ends by a limit, or an operator ends
   it, while the server still has the lock. */
#define EV_LOSE(N) \
:: ON(12) (ph[N] == HELD || ph[N] == OFFERED) && (trust[N] == 0 || FAULT); \
	SAY("acquisition %d is lost", N) \
	if :: trust[N] > 0 -> faults++ :: else fi; \
	lose(N); \
	END

/* An acquisition with an unknown outcome is released again. */
#define EV_RECONCILE(N) \
:: ON(13) reconcile[N] != 0; \
	SAY("acquisition %d is reconciled", N) \
	RECONCILES(N); \
	b = 0; \
	for (m : 0 .. NK - 1) { \
		if :: kk[m] != 0 && kr[m] == 0 && (kn[m] == N || kh[m] == N) -> b = 1 :: else fi \
	} \
	if :: REPEATS(N) -> reconcile[N] = 2 :: else -> reconcile[N] = 0 fi; \
	END

/* A hold is renewed, even before the reply to an earlier renewal. */
#define EV_RENEW(N) \
:: ON(15) RENEWED(N) && trust[N] < LEASE && ROOM; \
	SAY("acquisition %d is to be renewed", N) \
	slot(); \
	kk[k] = REN; kn[k] = N; kg[k] = passed[N]; \
	n = N; \
	assert(ph[n] == HELD); /* no renewal is sent for an acquisition that has ended */ \
	END

/* The reply to a renewal arrives, perhaps after the acquisition ended. The lease counts from when the renewal was sent. */
#define EV_REPLY_REN(K) \
:: ON(16) kk[K] == REN && kr[K] != 0 && !copy[K]; \
	SAY("the reply to renewal %d arrives", K) \
	n = kn[K]; \
	if \
	:: kr[K] == GRANT && RENEWED(n) -> extend(n, LEASE, RENEWAL_AGE(K)) \
	:: kr[K] == NOTHING && (ph[n] == HELD || ph[n] == OFFERED) -> lose(n) \
	:: else \
	fi; \
	drop(K); \
	END

/* A reply to a release is lost, and the release is sent again. */
#define EV_RESEND(K) \
:: d_step { kk[K] == REL && kr[K] != 0 && FAULT; \
	SAY("release %d is sent again", K) \
	kr[K] = 0; kt[K] = 0; ka[K] = 0; \
	faults++; \
	END

#ifdef GRANT_BY_MESSAGE
/* The message of a release that granted the lock to a ticket arrives, and is taken for the grant. */
#define EV_MESSAGE(P) \
:: d_step { notified[P] != NONE && ticket[P] == notified[P] && size[P] > 0; \
	SAY("process %d is notified that it has the lock", P) \
	n = notified[P]; notified[P] = NONE; ticket[P] = NONE; \
	got[n] = 1; issue(); token[n] = issued; trust[n] = OFFER; \
	offer(n); \
	END
#else
#define EV_MESSAGE(P)
#endif

/* A duplicate never arrives. */
#define EV_VANISH(K) \
:: d_step { copy[K]; \
	SAY("duplicate %d never arrives", K) \
	drop(K); END

/* A local queue that waits for a holder in its own process is woken. */
#define EV_ALARM(P) \
:: d_step { alarm[P]; \
	SAY("the local queue of process %d is woken", P) \
	alarm[P] = 0; \
	if :: !awake[P] -> wake(P); quiet[P] = 0 :: else fi; \
	CLOSE

/* A process is killed. Its commands in flight may still be executed. */
#define EV_CRASH(P) \
:: d_step { !dead[P] && FAULT; \
	SAY("process %d is killed", P) \
	crash(P); \
	faults++; \
	END

/* ---- what the events need ---- */

/* leaveBehind: a caller that has sent a request leaves. If its outcome is unknown, the ticket of the local queue is abandoned. */
inline leaveBehind(caller) {
	n = ticket[HOME(caller)];
	if
	:: requested[caller] && n != NONE ->
		countPending(n);
		if
		:: uncertain[n] || x > 0 -> ticket[HOME(caller)] = NONE; fail(n)
		:: else
		fi
	:: else
	fi
}

/* refused: name is in the queue. */
inline refused(name) {
	traced[name] = 1;
#ifndef REFUSED_WHEN_OVER
	if :: ph[name] == OVER -> mustRelease(name) :: else fi
#endif
}

/* unheard: the reply to command s arrived, and no caller waits for it. */
inline unheard(s) {
	n = kn[s];
#ifdef NO_NUMBER
	/* It is taken for the reply to the latest request of the current first waiter. */
	c = localQueue[whose[n] * NC];
	if
	:: kr[s] == GRANT && size[whose[n]] > 0 && LIVES(n) -> kc[s] = c; late = 0; got[n] = 1; token[n] = kt[s]; ph[n] = HELD; held[whose[n]] = n; ticket[whose[n]] = NONE; trust[n] = LEASE;
		for (m : 0 .. NK - 1) { if :: kc[m] == c && kk[m] == REQ -> kc[m] = NONE :: else fi }
		hold(c, n)
	:: else ->
#endif
	uncertain[n] = 1;
	if :: ph[n] == OVER && reconcile[n] == 0 -> reconcile[n] = 1 :: else fi
#ifdef NO_NUMBER
	fi
#endif
}

inline lose(name) {
	for (m : 0 .. NC - 1) { if :: cs[m] == HOLDS && hn[m] == name -> cs[m] = AWAY; hn[m] = NONE :: else fi }
	ph[name] = OVER; trust[name] = 0;
	unhold(name);
	mustRelease(name)
}

/* broke: command s failed with an error. */
inline broke(s) {
	n = kn[s];
	if
	:: kk[s] == REQ ->
		if :: kc[s] != NONE -> inFlight[kc[s]] = 0 :: else fi;
		mayRun(n)
	:: kk[s] == REL ->
		q = kh[s];
		if
		:: q != NONE ->
			uncertain[q] = 1;
			if :: ph[q] == OVER -> mustRelease(q) :: else fi
		:: else
		fi;
		unhold(n);
		reconcile[n] = 2
	:: else
	fi
}

inline crash(proc) {
	dead[proc] = 1;
	for (m : 0 .. NC - 1) {
		if :: HOME(m) == proc -> cs[m] = DEAD; hn[m] = NONE; requested[m] = 0; inFlight[m] = 0; localQueue[proc * NC + m] = 0 :: else fi
	}
	for (m : 0 .. NN - 1) {
		if :: ph[m] != UNUSED && whose[m] == proc -> ph[m] = OVER; trust[m] = 0; reconcile[m] = 0; uncertain[m] = 0; traced[m] = 0; got[m] = 0; token[m] = 0 :: else fi
	}
	for (i : 0 .. NK - 1) {
		if
		:: kk[i] != 0 && whose[kn[i]] == proc ->
			if
			:: kr[i] != 0 -> drop(i)
			:: else -> copy[i] = 1; kc[i] = NONE; ka[i] = 0
			fi
		:: else
		fi
	}
	for (m : 0 .. NC - 1) { localQueue[proc * NC + m] = 0 }
	size[proc] = 0; awake[proc] = 0; alarm[proc] = 0; quiet[proc] = 0;
	ticket[proc] = NONE; offered[proc] = NONE; held[proc] = NONE
}

#ifdef TRACE
#define MAY_CANCEL true
#define MAY_BEGIN true
#define CANCELLED skip
#else
#define MAY_CANCEL FAULT
#define MAY_BEGIN (calls < CALLS)
#define CANCELLED faults++
#endif

#define MAY_PASS(n, p) (size[p] > 0 && offered[p] == NONE && held[p] == n && PASS_SURE(n) && passed[n] < PASSES)

#ifdef PASS_UNCERTAIN
#define PASS_SURE(n) 1
#else
#define PASS_SURE(n) (!uncertain[n] && !PENDING(n))
#endif

#ifdef NO_ALARM
#define ALARMS 0
#else
#define ALARMS 1
#endif

#ifdef RENEW_AFTER_RELEASE
#define STOP(n) skip
#define RENEWED(n) ((ph[n] == HELD || ph[n] == OVER && got[n]) && (trust[n] > 0))
#else
#define STOP(n) trust[n] = 0
#define RENEWED(n) (ph[n] == HELD && trust[n] > 0)
#endif

#ifdef RENEWAL_FROM_REPLY
#define RENEWAL_AGE(k) 0
#else
#define RENEWAL_AGE(k) ka[k]
#endif

#ifdef NO_RECONCILING
#define RECONCILES(n) skip
#define REPEATS(n) 0
#else
#define RECONCILES(n) release(n, NONE, 0)
#ifdef RECONCILE_ONCE
#define REPEATS(n) 0
#else
#define REPEATS(n) (reconcile[n] == 2 && b)
#endif
#endif

#include "bounds.pml"

init {
#ifdef TRACE
	CHOOSE
#endif
	do
	OF_CALLERS(EV_START)
	OF_CALLERS(EV_REQUEST)
	OF_CALLERS(EV_TAKE)
	OF_CALLERS(EV_CANCEL)
	OF_CALLERS(EV_UNLOCK)
	OF_COMMANDS(EV_RUN)
	OF_COMMANDS(EV_REPLY_REQ)
	OF_COMMANDS(EV_REPLY_REL)
	OF_COMMANDS(EV_BREAK)
	OF_COMMANDS(EV_TIMEOUT)
	OF_COMMANDS(EV_CROSS)
	OF_NAMES(EV_LOSE)
	OF_NAMES(EV_RECONCILE)
	PROCESSES(EV_ALARM)
#if defined(TRACE) || defined(RENEWALS)
	OF_NAMES(EV_RENEW)
	OF_COMMANDS(EV_REPLY_REN)
#endif
#ifndef TRACE
	COMMANDS(EV_RESEND)
	COMMANDS(EV_VANISH)
	PROCESSES(EV_CRASH)
	PROCESSES(EV_MESSAGE)
#ifndef TIMELESS
	:: d_step { PROMPT && !(FINISHED); tick(); END
	:: d_step { !(PROMPT) && delays < DELAYS; delays++; tick(); END
#endif
	:: FINISHED -> break
#else
	:: ON(14) holder != NONE; gone(); END
	:: ON(17) for (i : 1 .. ta) { tick() } END
	:: ON(18) EXPECT(trust[ta] == tb) END /* how long the process considers the lease valid */
	:: c_expr { (now.at == tr_len[now.which]) } -> c_code { tr_ok[now.which] = 1; }; break
#endif
	od
}
