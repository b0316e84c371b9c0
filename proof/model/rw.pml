/*
 * The read/write lock: concurrent readers, exclusive writers, leases that expire, readers that share
 * the hold of their process, the downgrade of a writer, writer intents, and reader batches.
 * README.md explains how to read this file, and what it leaves out.
 *
 * Each step is one event. A caller calls once; its number is its owner string. Its position in the
 * order of arrival is what the scripts compute from "waited".
 */

#ifndef NC
#define NC 3            /* callers */
#endif
#ifndef WRITERS
#define WRITERS 2       /* a set: callers that write */
#endif
#ifdef TRACE
#define HOME(c) ((c) % processes) /* of the history */
#elif defined(SHARES)
#define HOME(c) (c > 0) /* all but the first are of one process, whose readers share a hold */
#else
#define HOME(c) (c)
#endif
#ifdef DOWNGRADES
#define BESIDE(c) (c == 1 -> 0 : NONE) /* caller 1 acquires a read hold while caller 0 writes, which then releases its write hold: a downgrade */
#else
#define BESIDE(c) NONE
#endif
#ifndef NK
#define NK 2            /* commands in flight at a time, with delayed duplicates */
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef DELAYS
#define DELAYS 0        /* ticks in which something that is due does not happen */
#endif
#ifndef LEASE
#define LEASE 2
#endif
#ifndef PASS_MOST
#define PASS_MOST 255   /* how many writers may pass a waiting reader, and readers a waiting writer */
#endif
#define NONE 255
#define NEVER 15        /* it has not arrived yet */

#define IN(set, c) (((set) >> (c)) & 1)
#ifdef TRACE
#define WRITES(c) IN(writers, c)
#else
#define WRITES(c) IN(WRITERS, c)
#endif

/* Callers. */
#define AWAY  0
#define WAITS 1
#define HOLDS 2
#define GIVES 3         /* it releases what it may have, until that is confirmed */
#define OUT   4

/* Commands. */
#define REQ 1           /* rw_read_acquire, rw_write_acquire */
#define REL 2           /* rw_read_release, rw_write_release */
#define REN 3           /* the renewal of a writer */
#define DOWN 4          /* rw_read_acquire of a caller whose owner also writes: it does not wait */
#define REW 5           /* rw_read_renew */

#define GRANT   1
#define REFUSE  2
#define NOTHING 3

byte cs[NC];
byte on[NC] = NONE;     /* HOLDS: whose hold in Redis it uses; a reader that joined uses another reader's */
byte beside[NC] = NONE; /* the writer with the same owner: a downgrade, or a read hold inside a write hold */
byte trust[NC];         /* the ticks for which the process considers the lease of this hold valid */
byte came[NC] = NEVER;  /* the order of arrival */
byte passed[NC];        /* how many entered that arrived after this one was refused */
bit  waited[NC];        /* Redis has refused it */
bit  refused[NC];       /* and it knows that */
bit  reconcile[NC];         /* a duplicate of a command may be executed late: release again */
bit  open[NC];          /* other readers of its process may join this hold */
bit  shut[NC];          /* no reader may join even if it is granted now: one was refused since it sent its request */
bit  requested[NC];         /* it may have a hold, an intent or a reservation in Redis */
bit  uncertain[NC];        /* the outcome of one of its requests is unknown */
byte sharing[NC] = NONE;  /* WAITS: another reader of its process, whose request it shares */
bit  alsoReleases[NC];          /* HOLDS: it joined another reader's hold, and releases what it may have under its own name */

/* The server. */
byte mode;              /* 0 is free, 1 read, 2 write */
byte writer = NONE;
byte left;              /* remaining lease time of the writer */
byte lease[NC];         /* of each reader; 0 is none */
byte intent = NONE;       /* the waiting writer that readers wait behind */
byte reservation = NONE;       /* the reader with the reservation; its batch ends with the tick */
bit  began;             /* the batch has begun */
bit  entered;           /* one writer has passed the reader with the reservation, or is inside */
byte start;             /* the callers that arrived before the batch began */
byte wrote = NONE;      /* the latest writer */

byte kk[NK];
byte kn[NK];
byte ka[NK];
byte kr[NK];
bit  copy[NK];

byte arrivals;
byte faults;
byte delays;

hidden byte i, k, m, n, y, x;
hidden byte b, late, mixed, starves, remains, touched, between, outlasts;
hidden byte step[4], tells; /* tells: waiters are notified */

#ifdef STEPS
#include "steps.pml"
#endif

#ifdef TRACE
#define SETS 4
#include "trace.pml"
byte writers;           /* as WRITERS */
bit may[NC];            /* the server may have a hold, an intent or a reservation of it */
#else
#define LATE(s, most) late = (AGE(s) >= (most))
#define ON(e) d_step {
#define EXPECT(x)
#define END check(); m = 0 }
#endif

#define SAY(what, of) printf(what, of); printf("\n");
#ifdef TRACE
#define FAULT true
#else
#define FAULT (faults < FAULTS)
#endif
#define HAS(c) (cs[c] == HOLDS && trust[on[c]] > 0)
#define RENEWS(s) (kk[s] == REN || kk[s] == REW)

#ifdef TRACE
#define EACH(e) e(ta)
#define SLOTS(e) e(ta)
#define OTHERS(e, c) e(0, c) e(1, c) e(2, c) e(3, c) e(4, c) e(5, c) e(6, c) e(7, c)
#define ROOM 1
#define IS(k, c) || kk[k] != 0 && !copy[k] && kn[k] == c
#define FOUR(k, c) IS(k, c) IS(k + 1, c) IS(k + 2, c) IS(k + 3, c)
#define BUSY(c) (false FOUR(0, c) FOUR(4, c) FOUR(8, c) FOUR(12, c) FOUR(16, c) FOUR(20, c) FOUR(24, c) FOUR(28, c))
#else
#if NC == 2
#define EACH(e) e(0) e(1)
#define OTHERS(e, c) e(0, c) e(1, c)
#elif NC == 3
#define EACH(e) e(0) e(1) e(2)
#define OTHERS(e, c) e(0, c) e(1, c) e(2, c)
#elif NC == 4
#define EACH(e) e(0) e(1) e(2) e(3)
#define OTHERS(e, c) e(0, c) e(1, c) e(2, c) e(3, c)
#endif
#if NK == 2
#define SLOTS(e) e(0) e(1)
#define ROOM (kk[0] == 0 || kk[1] == 0)
#define BUSY(c) (kk[0] != 0 && !copy[0] && kn[0] == c || kk[1] != 0 && !copy[1] && kn[1] == c)
#elif NK == 3
#define SLOTS(e) e(0) e(1) e(2)
#define ROOM (kk[0] == 0 || kk[1] == 0 || kk[2] == 0)
#define BUSY(c) (kk[0] != 0 && !copy[0] && kn[0] == c || kk[1] != 0 && !copy[1] && kn[1] == c || kk[2] != 0 && !copy[2] && kn[2] == c)
#endif

#endif

inline slot() {
#ifdef TRACE
	k = numbered; numbered++
#else
	k = 0;
	do
	:: k < NK && kk[k] != 0 -> k++
	:: else -> break
	od
#endif
}

inline drop(at) { kk[at] = 0; kn[at] = 0; ka[at] = 0; kr[at] = 0; copy[at] = 0 }

inline send(what, name) { slot(); kk[k] = what; kn[k] = name }

/* ---- the server: what the scripts do ---- */

#ifdef STEPS
/* has records the state of the server. */
inline has() {
	c_code {
		step_put(now.mode); step_put(now.writer); step_put(now.left); step_puts(now.lease, NC); step_put(now.intent);
		step_put(now.reservation); step_put(now.began); step_put(now.entered); step_put(now.start);
	}
}

inline begins() {
	tells = 0;
	c_code { step_begin(); step_put(NC); step_put(LEASE); step_put(WRITERS); step_put(now.arrivals); step_puts(now.came, NC); step_puts(now.beside, NC); };
	has()
}

/* ends records a command: its kind and owner; its reply, and whether it notifies waiters. */
inline ends(what, name, reply) {
	step[0] = what; step[1] = name; step[2] = reply; step[3] = tells;
	c_code { step_puts(step, 4); };
	has();
	c_code { step_end(); }
}
#else
#define begins() skip
#define ends(what, name, reply) skip
#endif

/* alive: y is whether a reader other than name is alive. */
inline alive(name) {
	y = 0;
	for (m : 0 .. NC - 1) { if :: m != name && lease[m] > 0 -> y = 1 :: else fi }
}

inline free() {
	mode = 0; writer = NONE; left = 0;
	for (m : 0 .. NC - 1) { lease[m] = 0 }
}

/* beginBatch begins the batch of the reader with the reservation. */
inline beginBatch() {
	if :: reservation != NONE -> began = 1; start = arrivals; entered = 0 :: else fi
}

/* expired begins a batch if the lease of the writer that passed the reader has expired. y is whether it did. */
inline expired() {
	y = 0;
#ifndef ENDS_SILENTLY
	if :: mode == 0 && reservation != NONE && entered -> beginBatch(); y = 1 :: else fi
#endif
}

/* passes: name enters ahead of callers that arrived earlier and were refused. */
inline passes(name) {
	for (m : 0 .. NC - 1) {
		if :: cs[m] == WAITS && waited[m] && came[m] < came[name] && WRITES(m) != WRITES(name) -> passed[m]++ :: else fi
	}
	starves = 0;
	for (m : 0 .. NC - 1) { if :: passed[m] > PASS_MOST -> starves = 1 :: else fi }
	assert(!starves) /* no waiter is passed without bound by later callers of the other side */
}

inline serve(s) {
	n = kn[s];
	begins();
	if :: kk[s] == REQ && cs[n] == WAITS && !copy[s] -> waited[n] = 1 :: else fi;
	if
	:: kk[s] == REQ && WRITES(n) ->
		if
		:: mode == 2 && writer == n -> left = LEASE; kr[s] = GRANT
		:: else ->
			alive(NONE);
#ifdef WRITER_BARGES
			if :: mode == 1 -> free() :: else fi;
#else
			if :: mode == 1 && !y -> free() :: else fi;
#endif
			expired();
			if
			:: mode == 0 && !(reservation != NONE && began && came[reservation] < start) ->
				mode = 2; writer = n; wrote = n; left = LEASE; kr[s] = GRANT; waited[n] = 0; passes(n);
				if :: intent == n -> intent = NONE :: else fi;
				if :: reservation != NONE -> entered = 1; began = 0; start = 0 :: else fi
			:: else ->
				if :: intent == NONE || came[n] <= came[intent] -> intent = n :: else fi;
				kr[s] = REFUSE
			fi
		fi
	:: kk[s] == REQ && !WRITES(n) ->
		expired();
		if
		:: lease[n] == 0 && (mode == 2
#ifndef NO_INTENT
			|| intent != NONE && came[intent] < came[n] && !(began && came[n] < start)
#endif
			) ->
			if :: reservation == NONE || reservation == n || came[n] < came[reservation] -> reservation = n; if :: mode == 2 -> began = 0; entered = 1 :: else fi :: else fi;
			kr[s] = REFUSE
		:: else ->
			if :: lease[n] == 0 -> passes(n) :: else fi;
			mode = 1; lease[n] = LEASE; kr[s] = GRANT; waited[n] = 0;
			if :: reservation == n -> reservation = NONE; entered = 0; if :: !began -> start = 0 :: else fi :: else fi
		fi
	:: kk[s] == DOWN ->
		expired();
		if
		:: lease[n] == 0 && writer != beside[n] && (mode == 2 || intent != NONE && !y) -> kr[s] = REFUSE
		:: else ->
			if :: mode == 0 -> mode = 1 :: mode == 2 -> left = LEASE :: else fi;
			lease[n] = LEASE; kr[s] = GRANT
		fi
	:: kk[s] == REN || kk[s] == REW ->
#ifdef RENEWS_BACK
		if :: kk[s] == REN && mode == 0 -> mode = 2; writer = n; left = LEASE :: kk[s] == REW && mode != 2 -> mode = 1; lease[n] = LEASE :: else fi;
#endif
		kr[s] = GRANT;
		if
		:: kk[s] == REN && mode == 2 && writer == n -> left = LEASE
		:: kk[s] == REW && lease[n] > 0 -> lease[n] = LEASE; if :: mode == 2 -> left = LEASE :: else fi
		:: else -> kr[s] = NOTHING
		fi
	:: kk[s] == REL -> release(n); kr[s] = GRANT
	fi;
	ends(kk[s], n, kr[s])
}

/* release ends what name has: its write hold and intent, or its read hold and reservation. */
inline release(name) {
	if :: intent == name -> intent = NONE; tells = 1 :: else fi;
	if :: reservation == name -> reservation = NONE; began = 0; entered = 0; start = 0; tells = 1 :: else fi;
	if
#ifdef RELEASE_ANY
	:: mode == 2 && WRITES(name) ->
#else
	:: mode == 2 && writer == name ->
#endif
		touched = (writer != name);
		assert(!touched); /* no command ends the hold of another owner */
		alive(NONE);
		if
#ifdef DOWNGRADE_FREES
		:: y -> free()
#else
		:: y -> mode = 1; writer = NONE; left = 0
#endif
		:: else -> free()
		fi;
		beginBatch();
		tells = 1
	:: mode == 2 && !WRITES(name) -> lease[name] = 0
	:: mode == 1 && !WRITES(name) ->
		lease[name] = 0;
		alive(NONE);
		if :: !y -> free(); tells = 1; if :: reservation == NONE -> began = 0; start = 0 :: else fi :: else fi
	:: else
	fi
}

/* ---- a process ---- */

inline extend(name, age) { if :: LEASE > age && trust[name] < LEASE - age -> trust[name] = LEASE - age :: else fi }

/* enters: caller now holds the lock. */
inline enters(caller, name) {
	cs[caller] = HOLDS; on[caller] = name; sharing[caller] = NONE; uncertain[caller] = 0; refused[caller] = 0; shut[caller] = 0; passed[caller] = 0; waited[caller] = 0
}

/* refuses: caller receives a refusal. After a reader was refused, no others of its process join, until a reader that sends a request later
   is granted the lock. */
inline refuses(caller) {
	refused[caller] = 1;
	for (m : 0 .. NC - 1) {
		if :: !WRITES(caller) && !WRITES(m) && HOME(m) == HOME(caller) -> open[m] = 0; shut[m] = 1 :: else fi
	}
}

#ifdef JOINS_RESERVED
#define OWES(c)
#else
#define OWES(c) alsoReleases[c] = requested[c];
#endif

#ifdef TRACE
#define COMES_IN(c, name) skip /* the next event of the history */
#else
#define COMES_IN(c, name) OWES(c) enters(c, name)
#endif

/* lands: the request of caller has its reply, or failed. Readers that share it enter with a grant. A refusal is also for readers that arrived
   later. */
inline lands(caller, granted, isRefused) {
	for (i : 0 .. NC - 1) {
		if
		:: sharing[i] == caller ->
			if
			:: granted -> COMES_IN(i, caller)
			:: isRefused && came[i] > came[caller] -> refused[i] = 1; sharing[i] = NONE
			:: else -> sharing[i] = NONE
			fi
		:: else
		fi
	}
}

/* check: a writer holds the lock exclusively; if no command is in flight, no state remains. */
inline check() {
	mixed = 0;
	for (i : 0 .. NC - 1) {
		for (m : 0 .. NC - 1) { if :: i != m && HAS(i) && HAS(m) && WRITES(i) && beside[m] != i -> mixed = 1 :: else fi }
	}
	assert(!mixed);
	b = 1;
	for (m : 0 .. NC - 1) { if :: cs[m] != AWAY && cs[m] != OUT -> b = 0 :: else fi }
	for (m : 0 .. NK - 1) { if :: kk[m] != 0 -> b = 0 :: else fi }
	remains = (mode != 0 || intent != NONE || reservation != NONE);
	assert(!(b && remains))
}

inline tick() {
	printf("a tick\n");
	outlasts = 0;
	for (m : 0 .. NC - 1) { if :: delays == 0 && cs[m] == WAITS && !WRITES(m) && lease[m] > 0 && !BUSY(m) -> outlasts = 1 :: else fi }
	assert(!outlasts); /* no reader blocks writers with a lease that its process does not track */
	for (m : 0 .. NC - 1) {
		if :: trust[m] > 0 -> trust[m]-- :: else fi;
		if :: lease[m] > 0 -> lease[m]-- :: else fi;
#ifndef JOINS_LAPSED
		open[m] = 0
#endif
	}
	if :: left > 0 -> left-- :: else fi;
	alive(NONE);
	if
	:: mode == 2 && left == 0 -> free()
	:: mode == 1 && !y -> free()
	:: else
	fi;
	if :: began -> if :: reservation != NONE -> waited[reservation] = 0; passed[reservation] = 0 :: else fi; reservation = NONE; began = 0; entered = 0; start = 0 :: else fi; /* a reader that missed its batch makes a new reservation */
	for (m : 0 .. NK - 1) { if :: kk[m] != 0 && !copy[m] && ka[m] < LEASE -> ka[m]++ :: else fi }
}

#ifdef TRACE
/* alike: the processes are in the state that the history describes. The library may let readers join less often than the model. */
inline alike() {
	c_code {
		int open = tr_those(now.open, 1, tr[now.which][now.at][9]);
		int sets[] = {tr_those(now.cs, WAITS, 255), tr_those(now.cs, HOLDS, 255), tr_named(now.on, NC), open};
		now.ok = now.ok && tr_alike(now.which, now.at, sets);
	}
}
#endif

#define EV_START(C) \
:: ON(1) cs[C] == AWAY && MAY_COME(C); \
	SAY("caller %d comes", C) \
	COMES(C) \
	cs[C] = WAITS; came[C] = arrivals; arrivals++; \
	END

#define EV_REQUEST(C) \
:: ON(2) cs[C] == WAITS && ROOM && !BUSY(C) && NOT_SHARING(C); \
	SAY("caller %d sends a request", C) \
	send(REQUEST(C), C); \
	ASKS_BESIDE(C) \
	sharing[C] = NONE; \
	requested[C] = 1; shut[C] = 0; \
	EXPECT(k == tb) \
	END
#ifdef TRACE
#define MAY_COME(c) true
#define NOT_SHARING(c) true /* it may no longer share the request */
#define REQUEST(c) REQ
#define ASKS_BESIDE(c) if :: tc != NONE -> beside[c] = tc :: else fi;
#else
#define NOT_SHARING(c) (sharing[c] == NONE)
#define MAY_COME(c) (BESIDE(c) == NONE || HAS(BESIDE(c)))
#define REQUEST(c) (beside[c] == NONE -> REQ : DOWN)
#define ASKS_BESIDE(c)
#endif

/* A waiter may send a request at any time. It does so soon if the state of the lock changed. */
#define NEWS(c) (!refused[c] || mode == 0 || !WRITES(c) && mode == 1 && (intent == NONE || began) || WRITES(c) && intent == NONE)

/* A reader shares the request of another of its process, unless Redis may have granted it the lock already. */
#define EV_SHARE(C) \
:: ON(11) cs[C] == WAITS && !WRITES(C) && BESIDE(C) == NONE && !BUSY(C) && NOT_SHARING(C) && !IS_UNCERTAIN(C) && (false OTHERS(TRIPS, C)); \
	SAY("caller %d shares a request", C) \
	sharing[C] = NONE; \
	for (m : 0 .. NC - 1) { if :: sharing[C] == NONE && (false TRIPS(m, C)) -> sharing[C] = m :: else fi } \
	END
#ifdef TRACE
#define WITH(m) m == tb /* the one in the history */
#else
#define WITH(m) true
#endif
#define TRIPS(m, c) || WITH(m) && HOME(m) == HOME(c) && m != c && cs[m] == WAITS && !WRITES(m) && BESIDE(m) == NONE && !shut[m] && BUSY(m)
#ifdef SHARES_UNCERTAIN
#define IS_UNCERTAIN(c) false
#else
#define IS_UNCERTAIN(c) uncertain[c]
#endif

/* A reader joins the hold of another of its process. It releases what it may have under its own name. */
#define EV_JOIN(C) \
:: ON(3) cs[C] == WAITS && !WRITES(C) && BESIDE(C) == NONE && !BUSY(C) && (false OTHERS(JOINS, C)); \
	SAY("caller %d joins", C) \
	x = NONE; \
	for (m : 0 .. NC - 1) { if :: x == NONE && HOME(m) == HOME(C) && m != C && open[m] && LIVELY(m) -> x = m :: else fi } \
	JOINED(x) \
	OWES(C) \
	enters(C, x); \
	BELIEVES(x) \
	END

#ifdef JOINS_LAPSED
#define BELIEVES(x) trust[x] = LEASE;
#define LIVELY(m) (cs[m] == HOLDS && on[m] == m && trust[m] == 0)
#else
#define BELIEVES(x)
#define LIVELY(m) (trust[m] > 0)
#endif
#ifdef TRACE
/* With tc, it shared a request. */
#define JOINS(m, c) || m == tb && HOME(m) == HOME(c) && m != c && (open[m] || tc && sharing[c] == m) && LIVELY(m)
#define JOINED(x) x = tb;
#else
#define JOINS(m, c) || HOME(m) == HOME(c) && m != c && open[m] && LIVELY(m)
#define JOINED(x)
#endif

#define EV_CANCEL(C) \
:: ON(4) cs[C] == WAITS && FAULT; \
	SAY("the wait of caller %d ends", C) \
	faults++; cs[C] = GIVES; refused[C] = 0; passed[C] = 0; waited[C] = 0; sharing[C] = NONE; uncertain[C] = 0; \
	lands(C, 0, 0); \
	END

/* A caller releases its hold. The last one that shares the hold releases it in Redis. A writer whose owner has a read hold by now continues as a reader. */
#define EV_UNLOCK(C) \
:: ON(5) cs[C] == HOLDS && ROOM && (true OTHERS(NOT_IN_FLIGHT, C)); \
	SAY("caller %d unlocks", C) \
	DOWNGRADED(C) \
	x = on[C]; cs[C] = (x == C || alsoReleases[C] -> GIVES : OUT); on[C] = NONE; alsoReleases[C] = 0; \
	b = 1; \
	for (m : 0 .. NC - 1) { if :: cs[m] == HOLDS && on[m] == x -> b = 0 :: else fi } \
	if :: b -> trust[x] = 0; open[x] = 0; cs[x] = GIVES :: else fi; \
	END

/* What has ended, or has an unknown outcome, is released until no command for it is in flight. */
#define EV_GIVE(C) \
:: ON(10) GIVING(C) && ROOM && (true OTHERS(NOT_ON, C)); \
	SAY("caller %d releases", C) \
	send(REL, C); \
	EXPECT(k == tb) \
	END
#define NOT_ON(m, c) && !(cs[m] == HOLDS && on[m] == c)

#ifdef TRACE
#define NOT_IN_FLIGHT(m, c)
#define DOWNGRADED(c)
#else
#define NOT_IN_FLIGHT(m, c) && !(BESIDE(m) == c && cs[m] == WAITS)
#define DOWNGRADED(c) \
	for (m : 0 .. NC - 1) { \
		if \
		:: beside[m] == c && cs[m] == HOLDS && (DOWNGRADES_LATE || HAS(c)) -> \
			between = (wrote != c); \
			assert(!between) /* no other owner has written in between */ \
		:: beside[m] == c && cs[m] == HOLDS && !DOWNGRADES_LATE && !HAS(c) -> cs[m] = GIVES; on[m] = NONE; trust[m] = 0 \
		:: else \
		fi \
	}
#endif
#ifndef DOWNGRADES_LATE
#define DOWNGRADES_LATE 0
#endif

#define EV_RENEW(C) \
:: ON(0) HAS(C) && on[C] == C && trust[C] < LEASE && ROOM && !BUSY(C) && RENEWALS; \
	SAY("the hold of caller %d is renewed", C) \
	send((WRITES(C) -> REN : REW), C); \
	END
#ifndef RENEWALS
#define RENEWALS 0
#endif
#define EV_RUN(K) \
:: ON(6) kk[K] != 0 && kr[K] == 0; \
	SAY("command %d is executed", K) \
	SERVE(K) \
	if :: copy[K] -> drop(K) :: else fi; \
	END

#define EV_REPLY(K) \
:: ON(7) kk[K] != 0 && kr[K] != 0 && !copy[K]; \
	SAY("the reply to command %d arrives", K) \
	n = kn[K]; y = NONE; \
	LATE(K, LEASE); \
	if \
	:: kk[K] == REQ && cs[n] == WAITS && kr[K] == GRANT && !late -> \
		extend(n, AGE(K)); open[n] = !WRITES(n) && !shut[n] && beside[n] == NONE; enters(n, n); lands(n, 1, 0); y = n \
	:: kk[K] == REQ && cs[n] == WAITS && kr[K] == GRANT && late -> cs[n] = GIVES; uncertain[n] = 0; lands(n, 0, 0) \
	:: kk[K] == REQ && cs[n] == WAITS && kr[K] == REFUSE -> refuses(n); lands(n, 0, 1) \
	:: kk[K] == DOWN && cs[n] == WAITS && kr[K] == GRANT && !late -> \
		extend(n, AGE(K)); TRUSTS_WRITING(n) open[n] = OPENS_BESIDE; enters(n, n) \
	:: kk[K] == DOWN && cs[n] == WAITS && (kr[K] == REFUSE || late) -> \
		cs[n] = GIVES; if :: kr[K] == REFUSE -> trust[beside[n]] = 0 :: else fi /* its write hold is lost */ \
	:: RENEWS(K) && cs[n] == HOLDS && trust[n] > 0 && kr[K] == GRANT -> extend(n, ka[K]) \
	:: kk[K] == REL -> \
		b = reconcile[n] && REPEATS; reconcile[n] = 0; \
		for (m : 0 .. NK - 1) { if :: m != K && kk[m] != 0 && !RENEWS(m) && kn[m] == n -> reconcile[n] = 1 :: else fi } \
		if \
		:: !b && cs[n] == GIVES -> cs[n] = OUT; came[n] = NEVER; reconcile[n] = 0; requested[n] = 0 \
		:: !b && cs[n] != GIVES -> alsoReleases[n] = 0; reconcile[n] = 0; requested[n] = 0 \
		:: else \
		fi \
	:: else \
	fi; \
	EXPECT(y == tb) \
	drop(K); \
	END
#ifdef TRACE
#define SERVE(k) kr[k] = tb; if :: kk[k] == REQ -> may[kn[k]] = 1 :: else -> may[kn[k]] = 0 fi;
#define GIVING(c) (cs[c] != AWAY && cs[c] != WAITS) /* some names are released more than once */
#define COMES(c) if :: tb -> writers = writers | (1 << c) :: else fi;
#else
#define SERVE(k) serve(k);
#define GIVING(c) ((cs[c] == GIVES || alsoReleases[c]) && !BUSY(c))
#define COMES(c)
#ifdef UNTIL_FROM_REPLY
#define AGE(k) 0
#else
#define AGE(k) ka[k]
#endif
#endif
#ifdef TRUSTS_THE_WRITING
#define TRUSTS_WRITING(n) if :: trust[beside[n]] > trust[n] -> trust[n] = trust[beside[n]] :: else fi;
#else
#define TRUSTS_WRITING(n)
#endif
#ifndef OPENS_BESIDE
#define OPENS_BESIDE 0
#endif
#ifdef RECONCILE_ONCE
#define REPEATS 0
#else
#define REPEATS 1
#endif

/* A connection breaks: the command was executed, never is, or a duplicate of it is executed late. */
#define EV_BREAK(K) \
:: ON(9) kk[K] != 0 && !copy[K] && FAULT; \
	SAY("the connection of command %d breaks", K) \
	FAILS(K) \
	drop(K); faults++; \
	EXPECT(tb == 0) \
	END \
:: ON(9) kk[K] != 0 && !copy[K] && kr[K] == 0 && FAULT; \
	SAY("the connection of command %d breaks, a duplicate is in flight", K) \
	FAILS(K) \
	copy[K] = 1; ka[K] = 0; if :: !RENEWS(K) -> reconcile[kn[K]] = 1 :: else fi; faults++; \
	EXPECT(tb == 1) \
	END

/* If its request fails, a downgrade fails, and the write hold stays as it was. */
#define FAILS(K) \
	if \
	:: kk[K] == DOWN && cs[kn[K]] == WAITS -> cs[kn[K]] = GIVES \
	:: kk[K] == REQ && cs[kn[K]] == WAITS -> if :: HEARS_LATER -> skip :: else -> uncertain[kn[K]] = 1 fi; lands(kn[K], 0, 0) \
	:: else \
	fi;
#ifdef TRACE
#define HEARS_LATER (tc == 1) /* the reply arrives after the caller stopped waiting for it */
#else
#define HEARS_LATER false
#endif

#define EV_VANISH(K) \
:: ON(0) copy[K]; SAY("duplicate %d never arrives", K) drop(K); END

#ifndef TRACE
#define CMD_DUE(k) && !(kk[k] != 0 && !copy[k] && ka[k] > 0)
#define CALL_DUE(c) && !(cs[c] == HOLDS && trust[on[c]] == 0) && !(cs[c] == WAITS && (NEWS(c) || RETRIES(c)) && sharing[c] == NONE && !BUSY(c)) && !(cs[c] == GIVES && !BUSY(c) && !reconcile[c]) && !(alsoReleases[c] && !BUSY(c) && !reconcile[c])
#ifdef ASKS_ONCE
#define RETRIES(c) false
#else
#define RETRIES(c) (!WRITES(c) && uncertain[c]) /* it retries in each poll interval */
#endif
#define PROMPT (true SLOTS(CMD_DUE) EACH(CALL_DUE))
#define CALL_OVER(c) && (cs[c] == OUT || cs[c] == AWAY && BESIDE(c) != NONE)
#define CMD_OVER(k) && kk[k] == 0
#define FINISHED (true EACH(CALL_OVER) SLOTS(CMD_OVER))
#endif

init {
#ifdef TRACE
	CHOOSE
#elif defined(DOWNGRADES)
	beside[1] = 0;
#endif
	do
	EACH(EV_START)
	EACH(EV_REQUEST)
	EACH(EV_JOIN)
	EACH(EV_SHARE)
	EACH(EV_CANCEL)
	EACH(EV_UNLOCK)
	EACH(EV_GIVE)
	EACH(EV_RENEW)
	SLOTS(EV_RUN)
	SLOTS(EV_REPLY)
	SLOTS(EV_BREAK)
#ifdef TRACE
	:: ON(12) uncertain[ta] = 1; END /* the reply arrived, and the caller did not wait for it */
	:: c_expr { (now.at == tr_len[now.which] && !tr_those(now.may, 1, 255)) } -> c_code { tr_ok[now.which] = 1; }; break
#else
	SLOTS(EV_VANISH)
	:: d_step { PROMPT && !(FINISHED); tick(); END
	:: d_step { !(PROMPT) && delays < DELAYS; delays++; tick(); END
	:: FINISHED -> break
#endif
	od
}
