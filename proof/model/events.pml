/* The events: what may happen next. Included by plain.pml. */

/* ---- calls ---- */

#define EV_START(C) \
:: ON(1) cs[C] == AWAY && !dead[HOME(C)] && ALIKE(C) && MAY_BEGIN; \
	SAY("caller %d comes", C) \
	calls++; \
	p = HOME(C); \
	if :: size[p] == 0 -> roused[p] = (held[p] == NONE); quiet[p] = 0 :: else fi; \
	cs[C] = WAITS; line[p * NC + size[p]] = C; size[p]++; \
	if :: held[p] != NONE && ALARMS -> alarm[p] = 1 :: else fi; \
	END

/* The first of a line asks, in the name of the line's ticket. */
#define EV_ASK(C) \
:: ON(2) cs[C] == WAITS && FIRST(C) && roused[HOME(C)] && !asking[C] && ROOM && NAME(ticket[HOME(C)]) \
	&& (offered[HOME(C)] == NONE || !LIVES(offered[HOME(C)])); \
	SAY("caller %d asks", C) \
	p = HOME(C); \
	offered[p] = NONE; \
	if :: ticket[p] == NONE -> fresh(p); ticket[p] = q :: else fi; \
	slot(); \
	kk[k] = ASK; kn[k] = ticket[p]; kc[k] = C; kg[k] = passed[ticket[p]]; \
	asked[C] = 1; asking[C] = 1; quiet[p] = 0; \
	EXPECT(ticket[p] == tb) \
	END

/* The first of a line takes what is offered to the line. */
#define EV_TAKE(C) \
:: ON(3) cs[C] == WAITS && FIRST(C) && roused[HOME(C)] && !asking[C] && offered[HOME(C)] != NONE && LIVES(offered[HOME(C)]); \
	SAY("caller %d takes what its line is offered", C) \
	n = offered[HOME(C)]; offered[HOME(C)] = NONE; \
	ph[n] = HELD; \
	EXPECT(n == tb) \
	hold(C, n); \
	END

/* The wait of a caller ends. Its question, if one is under way, is answered to nobody. */
#define EV_CANCEL(C) \
:: ON(4) cs[C] == WAITS && MAY_CANCEL; \
	SAY("the wait of caller %d ends", C) \
	CANCELLED; \
	p = HOME(C); \
	for (m : 0 .. NK - 1) { if :: kk[m] == ASK && kc[m] == C -> kc[m] = NONE; ka[m] = 0 :: else fi } \
	leaveBehind(C); \
	cs[C] = AWAY; quit(C); \
	END \
:: ON(4) cs[C] == WAITS && MAY_CANCEL && FIRST(C) && roused[HOME(C)] && !asking[C] && offered[HOME(C)] != NONE; \
	SAY("the wait of caller %d ends", C) \
	CANCELLED; \
	n = offered[HOME(C)]; offered[HOME(C)] = NONE; /* it was about to take it; and if that is lost by now, it is given back once more */ \
	fail(n); \
	cs[C] = AWAY; quit(C); \
	END

/* A caller gives the lock back: it is passed on inside the process, or released. */
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

/* The server carries a command out, in one piece. */
#define EV_RUN(K) \
:: ON(6) kk[K] != 0 && kr[K] == 0; \
	SAY("command %d is carried out", K) \
	serve(K, 0); \
	EXPECT(kr[K] == tb) \
	if :: copy[K] -> drop(K) :: else fi; \
	END \
:: ON(6) kk[K] == REL && kr[K] == 0 && holder == kn[K] && (kh[K] != NONE || standing > 0); \
	SAY("command %d is carried out", K) \
	serve(K, 1); \
	EXPECT(kr[K] == tb) \
	if :: copy[K] -> drop(K) :: else fi; \
	END

/* The answer to a question comes. */
#define EV_ANSWER_ASK(K) \
:: ON(7) kk[K] == ASK && kr[K] != 0 && !copy[K] && kc[K] != NONE; \
	SAY("the answer to question %d comes", K) \
	asking[kc[K]] = 0; \
	b = 0; \
	if :: kr[K] == GRANT -> granted(K) :: else -> refused(kn[K]) fi; \
	c = kc[K]; n = kn[K]; \
	EXPECT((b -> c : NONE) == tb) \
	if :: b -> hold(c, n) :: else fi; \
	drop(K); \
	END \
:: ON(7) kk[K] == ASK && kr[K] != 0 && !copy[K] && kc[K] == NONE; \
	SAY("the answer to question %d comes", K) \
	unheard(K); \
	drop(K); \
	END

#define EV_ANSWER_REL(K) \
:: ON(8) kk[K] == REL && kr[K] != 0 && !copy[K]; \
	SAY("the answer to release %d comes", K) \
	LATE(K, OFFER); \
	if :: kh[K] != NONE -> inherit(K) :: else fi; \
	n = kn[K]; \
	unhold(n); \
	if :: unsure[n] -> doubt[n] = 2 :: else fi; \
	drop(K); \
	END

/* A connection breaks: the caller of the command hears an error, and the command was carried
   out before, or never is, or a copy of it is carried out late. */
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

/* A call does not wait any longer for the answer, and goes on. */
#define EV_TIMEOUT(K) \
:: ON(10) kk[K] == ASK && kc[K] != NONE && FAULT; \
	SAY("nobody waits for question %d any longer", K) \
	asking[kc[K]] = 0; kc[K] = NONE; ka[K] = 0; \
	faults++; \
	END

/* The wait of a caller ends just as it was granted the lock. */
#define EV_CROSS(K) \
:: ON(11) kk[K] == ASK && kc[K] != NONE && kr[K] == GRANT && MAY_CANCEL; \
	SAY("the wait ends as the answer to question %d comes", K) \
	CANCELLED; \
	c = kc[K]; n = kn[K]; p = HOME(c); \
	drop(K); \
	mayRun(n); \
	leaveBehind(c); \
	cs[c] = AWAY; quit(c); \
	END

/* ---- tenures ---- */

/* The watchdog sees that the trust has run out; or a hold ends by a limit, or by an
   operator's hand, while the server has the lock as before. */
#define EV_LOSE(N) \
:: ON(12) (ph[N] == HELD || ph[N] == OFFERED) && (trust[N] == 0 || FAULT); \
	SAY("tenure %d is lost", N) \
	if :: trust[N] > 0 -> faults++ :: else fi; \
	lose(N); \
	END

/* What is in doubt is released once more. */
#define EV_SETTLE(N) \
:: ON(13) doubt[N] != 0; \
	SAY("tenure %d is settled", N) \
	SETTLES(N); \
	b = 0; \
	for (m : 0 .. NK - 1) { \
		if :: kk[m] != 0 && kr[m] == 0 && (kn[m] == N || kh[m] == N) -> b = 1 :: else fi \
	} \
	if :: LOOKS(N) -> doubt[N] = 2 :: else -> doubt[N] = 0 fi; \
	END

/* A hold is renewed, also while the answer to an earlier renewal is not there. */
#define EV_RENEW(N) \
:: ON(15) RENEWED(N) && trust[N] < LEASE && ROOM; \
	SAY("tenure %d is to be renewed", N) \
	slot(); \
	kk[k] = REN; kn[k] = N; kg[k] = passed[N]; \
	n = N; \
	assert(ph[n] == HELD); /* no renewal is sent for a tenure that is over */ \
	END

/* The answer to a renewal comes, perhaps when the tenure is over. It counts from when the renewal was sent. */
#define EV_ANSWER_REN(K) \
:: ON(16) kk[K] == REN && kr[K] != 0 && !copy[K]; \
	SAY("the answer to renewal %d comes", K) \
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
/* The message of a release that gave the lock to a ticket arrives, and is believed. */
#define EV_MESSAGE(P) \
:: d_step { told[P] != NONE && ticket[P] == told[P] && size[P] > 0; \
	SAY("process %d hears that it has the lock", P) \
	n = told[P]; told[P] = NONE; ticket[P] = NONE; \
	got[n] = 1; issue(); token[n] = issued; trust[n] = OFFER; \
	offer(n); \
	END
#else
#define EV_MESSAGE(P)
#endif

/* A copy never arrives. */
#define EV_VANISH(K) \
:: d_step { copy[K]; \
	SAY("copy %d never arrives", K) \
	drop(K); END

/* A line that waits for the holder in its own process looks for itself now. */
#define EV_ALARM(P) \
:: d_step { alarm[P]; \
	SAY("the line of process %d looks for itself", P) \
	alarm[P] = 0; \
	if :: !roused[P] -> rouse(P); quiet[P] = 0 :: else fi; \
	CLOSE

/* A process is killed. What it has sent may be carried out yet. */
#define EV_CRASH(P) \
:: d_step { !dead[P] && FAULT; \
	SAY("process %d is killed", P) \
	crash(P); \
	faults++; \
	END

/* ---- what the events need ---- */

/* leaveBehind is what a caller that has asked, and leaves, does with the ticket of its line. */
inline leaveBehind(caller) {
	n = ticket[HOME(caller)];
	if
	:: asked[caller] && n != NONE ->
		countPending(n);
		if
		:: unsure[n] || x > 0 -> ticket[HOME(caller)] = NONE; fail(n)
		:: else
		fi
	:: else
	fi
}

/* refused is when name stands in the queue. */
inline refused(name) {
	traced[name] = 1;
#ifndef REFUSED_WHEN_OVER
	if :: ph[name] == OVER -> giveBack(name) :: else fi
#endif
}

/* unheard is when the answer to command s came, for which no caller waits. */
inline unheard(s) {
	n = kn[s];
#ifdef NO_NUMBER
	/* Taken for the answer to the latest question of whoever is the first now. */
	c = line[whose[n] * NC];
	if
	:: kr[s] == GRANT && size[whose[n]] > 0 && LIVES(n) -> kc[s] = c; late = 0; got[n] = 1; token[n] = kt[s]; ph[n] = HELD; held[whose[n]] = n; ticket[whose[n]] = NONE; trust[n] = LEASE;
		for (m : 0 .. NK - 1) { if :: kc[m] == c && kk[m] == ASK -> kc[m] = NONE :: else fi }
		hold(c, n)
	:: else ->
#endif
	unsure[n] = 1;
	if :: ph[n] == OVER && doubt[n] == 0 -> doubt[n] = 1 :: else fi
#ifdef NO_NUMBER
	fi
#endif
}

inline lose(name) {
	for (m : 0 .. NC - 1) { if :: cs[m] == HOLDS && hn[m] == name -> cs[m] = AWAY; hn[m] = NONE :: else fi }
	ph[name] = OVER; trust[name] = 0;
	unhold(name);
	giveBack(name)
}

/* broke is when command s came to an error. */
inline broke(s) {
	n = kn[s];
	if
	:: kk[s] == ASK ->
		if :: kc[s] != NONE -> asking[kc[s]] = 0 :: else fi;
		mayRun(n)
	:: kk[s] == REL ->
		q = kh[s];
		if
		:: q != NONE ->
			unsure[q] = 1;
			if :: ph[q] == OVER -> giveBack(q) :: else fi
		:: else
		fi;
		unhold(n);
		doubt[n] = 2
	:: else
	fi
}

inline crash(proc) {
	dead[proc] = 1;
	for (m : 0 .. NC - 1) {
		if :: HOME(m) == proc -> cs[m] = DEAD; hn[m] = NONE; asked[m] = 0; asking[m] = 0; line[proc * NC + m] = 0 :: else fi
	}
	for (m : 0 .. NN - 1) {
		if :: ph[m] != UNUSED && whose[m] == proc -> ph[m] = OVER; trust[m] = 0; doubt[m] = 0; unsure[m] = 0; traced[m] = 0; got[m] = 0; token[m] = 0 :: else fi
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
	for (m : 0 .. NC - 1) { line[proc * NC + m] = 0 }
	size[proc] = 0; roused[proc] = 0; alarm[proc] = 0; quiet[proc] = 0;
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

#ifdef PASS_UNSURE
#define PASS_SURE(n) 1
#else
#define PASS_SURE(n) (!unsure[n] && !PENDING(n))
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

#ifdef NO_SETTLING
#define SETTLES(n) skip
#define LOOKS(n) 0
#else
#define SETTLES(n) release(n, NONE, 0)
#ifdef LOOK_ONCE
#define LOOKS(n) 0
#else
#define LOOKS(n) (doubt[n] == 2 && b)
#endif
#endif

#include "bounds.pml"

init {
#ifdef TRACE
	CHOOSE
#endif
	do
	OF_CALLERS(EV_START)
	OF_CALLERS(EV_ASK)
	OF_CALLERS(EV_TAKE)
	OF_CALLERS(EV_CANCEL)
	OF_CALLERS(EV_UNLOCK)
	OF_COMMANDS(EV_RUN)
	OF_COMMANDS(EV_ANSWER_ASK)
	OF_COMMANDS(EV_ANSWER_REL)
	OF_COMMANDS(EV_BREAK)
	OF_COMMANDS(EV_TIMEOUT)
	OF_COMMANDS(EV_CROSS)
	OF_NAMES(EV_LOSE)
	OF_NAMES(EV_SETTLE)
	PROCESSES(EV_ALARM)
#if defined(TRACE) || defined(RENEWALS)
	OF_NAMES(EV_RENEW)
	OF_COMMANDS(EV_ANSWER_REN)
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
	:: ON(18) EXPECT(trust[ta] == tb) END /* for how long the process trusts */
	:: c_expr { (now.at == tr_len[now.which]) } -> c_code { tr_ok[now.which] = 1; }; break
#endif
	od
}
