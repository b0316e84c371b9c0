/*
 * The plain lock: its queue, the hand-off to another process, and the hand-off inside a
 * process. README.md explains how to read this file, and what it leaves out.
 *
 * Each step of the model is one event: of a caller, the network, the server, or the clock.
 * The state is global, and the only SPIN process picks any event that is enabled.
 */

#ifndef NP
#define NP 2      /* processes */
#endif
#ifndef NC
#define NC 3      /* callers; caller c is of process HOME(c) */
#endif
#ifndef NN
#define NN 4      /* owner strings in use at a time */
#endif
#ifndef NK
#define NK 2      /* commands in flight at a time, with delayed duplicates */
#endif
#ifndef FAULTS
#define FAULTS 1  /* maximum number of faults in a history */
#endif
#ifndef CALLS
#define CALLS 3   /* calls in a history */
#endif
#ifndef DELAYS
#define DELAYS 1  /* ticks in which something that is due does not happen */
#endif
#ifndef LEASE
#define LEASE 3   /* of a grant, in ticks */
#endif
#ifndef OFFER
#define OFFER 2   /* of a grant by a release, until its owner sends a request */
#endif
#ifndef PASSES
#define PASSES 1  /* hand-offs in a row inside a process */
#endif
#ifndef IDLE_MOST
#define IDLE_MOST 255
#endif

#ifdef TRACE
#define HOME(c) (c % processes) /* of the history */
#else
#define HOME(c) (c % NP)
#endif
#define NONE 255

/* What a caller does. */
#define AWAY  0
#define WAITS 1
#define HOLDS 2
#define DEAD  3

/* The state of an owner string: the phases of an acquisition. */
#define UNUSED  0
#define QUEUED  1  /* the ticket of a local queue */
#define OFFERED 2  /* its process has the lock, and the first local waiter can take it */
#define HELD    3  /* a caller holds the lock */
#define OVER    4

/* Commands. */
#define REQ 1      /* reentrant_acquire */
#define REL 2      /* reentrant_release */
#define REN 3      /* reentrant_renew */

/* The reply of the server. */
#define GRANT   1  /* REQ, REN: the owner has the lock */
#define REFUSE  2  /* REQ: another owner has it */
#define FREED   3  /* REL: the lock is free, or another process has it */
#define TO_NEXT 4  /* REL: the next owner has it */
#define ASIDE   5  /* REL: the lock is free, and the queue lets others go first */
#define NOTHING 6  /* REL, REN: the owner does not have the lock */

/* Callers. */
byte cs[NC];            /* the state of caller c */
byte hn[NC] = NONE;     /* HOLDS: its owner string */
bit  requested[NC];         /* WAITS: it has sent a request */
bit  inFlight[NC];        /* WAITS: its request has no reply yet */

/* The local queue of process p. */
byte localQueue[NP * NC];
byte size[NP];
bit  awake[NP];        /* the first waiter decides itself when to send a request */
bit  alarm[NP];         /* a timer will wake the queue */
bit  quiet[NP];         /* a tick has passed since the queue was woken */
byte ticket[NP] = NONE;
byte offered[NP] = NONE;
byte held[NP] = NONE;   /* the owner string by which the process has the lock */
bit  dead[NP];

/* Owner strings. */
byte ph[NN];
byte whose[NN];            /* its process */
bit  uncertain[NN];        /* a request for it may be executed late */
bit  traced[NN];        /* it may be in the queue in Redis */
bit  got[NN];           /* it was granted the lock */
byte reconcile[NN];         /* 1: release it, 2: release it again after that */
byte trust[NN];         /* the ticks for which its process considers the lease valid */
byte passed[NN];        /* how often it was handed off inside the process */
byte token[NN];

/* The server. */
byte holder = NONE;
byte left;              /* remaining lease time */
byte queue[NP];         /* owner strings, at most one of each process */
byte queueSize;
byte issued;            /* the latest token */

#ifdef GRANT_BY_MESSAGE
byte notified[NP] = NONE;   /* the message in flight to process p: which owner string has the lock */
#endif

/* Commands in flight. */
byte kk[NK];            /* 0 is none */
byte kn[NK];            /* for which owner string */
byte kc[NK] = NONE;     /* REQ: the caller that waits for the reply */
byte kh[NK] = NONE;     /* REL: the next owner that it names */
byte ka[NK];            /* how long ago it was sent */
byte kr[NK];            /* the reply; 0 before it is executed */
byte kt[NK];            /* the token in the reply */
byte kg[NK];            /* the value of passed when it was sent */
bit  copy[NK];          /* a delayed duplicate: its reply is ignored */

byte calls;
byte faults;
byte delays;
byte idle;              /* how long a caller has been waiting while no caller has a valid lease */
byte begun;             /* the latest token of a caller that acquired the lock */

hidden byte i, j, k, m, n, c, p, q, x, y, who;
hidden byte b, known, late, renewed;
hidden byte step[5];

#ifdef STEPS
#include "steps.pml"
#endif

#ifdef TRACE
#include "trace.pml"
#else
#define LATE(s, most) late = (ka[s] >= (most))
#define AGE(s) ka[s]
#define ON(e) d_step {
#define EXPECT(x)
#define END recycle(); check(); m = 0 }
#define CLOSE END
#define OF_CALLERS(event) CALLERS(event)
#define OF_COMMANDS(event) COMMANDS(event)
#define OF_NAMES(event) NAMES(event)
#endif

#define SAY(what, of) printf(what, of); printf("\n");
#define LIVES(n)   (ph[n] != UNUSED && ph[n] != OVER)
#define FIRST(c)   (size[HOME(c)] > 0 && localQueue[HOME(c) * NC] == c)
#define TRUSTS(c)  (cs[c] == HOLDS && trust[hn[c]] > 0)
#ifdef TRACE
#define FAULT      true
#else
#define FAULT      (faults < FAULTS)
#endif

/* ---- helpers ---- */

/* countPending: x is the number of requests for name without a reply. */
inline countPending(name) {
	x = 0;
	for (m : 0 .. NK - 1) {
		if :: kk[m] == REQ && kn[m] == name && !copy[m] -> x++ :: else fi
	}
}

/* slot: k is a free slot for a command; NK if there is none. */
inline slot() {
#ifdef TRACE
	k = numbered; numbered++;
#else
	k = 0;
	do
	:: k < NK && kk[k] != 0 -> k++
	:: else -> break
	od
#endif
}

/* fresh: q is an unused owner string; NN if there is none. */
inline fresh(proc) {
	q = 0;
	do
	:: q < NN && ph[q] != UNUSED -> q++
	:: else -> break
	od;
	if
	:: q < NN -> ph[q] = QUEUED; whose[q] = proc
	:: else
	fi
}

inline drop(at) {
	kk[at] = 0; kn[at] = 0; kc[at] = NONE; kh[at] = NONE; ka[at] = 0;
	kr[at] = 0; kt[at] = 0; kg[at] = 0; copy[at] = 0
}

inline forget(name) {
	ph[name] = UNUSED; whose[name] = 0; uncertain[name] = 0; traced[name] = 0; got[name] = 0;
	reconcile[name] = 0; trust[name] = 0; token[name] = 0;
#ifdef OWNER_TWICE
	passed[name] = (passed[name] + PASSES + 1) % 250
#else
	passed[name] = 0
#endif
}

/* ---- the server: what the scripts do ---- */

#ifdef STEPS
/* has records the state of the server. */
inline has() {
	c_code { step_put(now.holder); step_put(now.left); step_put(now.queueSize); step_puts(now.queue, NP); }
}

/* begins records a command: its owner string and next owner, and whether it frees the lock. */
inline begins(name, nextOwner, frees) {
	step[0] = name; step[1] = nextOwner; step[2] = frees;
	c_code { step_begin(); step_put(NP); step_put(NN); step_put(LEASE); step_put(OFFER); step_puts(now.whose, NN); step_puts(now.dead, NP); };
	has()
}

inline ends(what, reply) {
	step[3] = what; step[4] = reply;
	c_code { step_puts(step, 5); };
	has();
	c_code { step_end(); }
}
#else
#define begins(name, nextOwner, frees) skip
#define ends(what, reply) skip
#endif

/* enlist adds name to the queue: at the position of its process, or at the end. */
inline enlist(name) {
	x = 0;
	do
	:: x < queueSize && whose[queue[x]] != whose[name] -> x++
	:: else -> break
	od;
	queue[x] = name;
	if :: x == queueSize -> queueSize++ :: else fi
}

/* unlist removes the entry at this position from the queue. */
inline unlist(at) {
	for (m : at .. NP - 2) { queue[m] = queue[m + 1] }
	queue[NP - 1] = 0;
	queueSize--
}

inline unqueue() {
	for (m : 0 .. NP - 1) { queue[m] = 0 }
	queueSize = 0
}

inline gone() { holder = NONE; left = 0; unqueue() }

inline issue() { issued++ }

/* serve executes command s. With frees, a release frees the lock for callers outside the queue. */
inline serve(s, frees) {
	who = kn[s];
	/* No command of an earlier acquisition affects a later one with the same owner string. */
	assert(kk[s] == REN || kg[s] == passed[who] || !LIVES(who) || !got[who]);
	begins(who, NONE, 0);
	if
	:: kk[s] == REQ ->
		if
		:: holder == NONE ->
			holder = who; left = LEASE; unqueue(); issue(); kr[s] = GRANT; kt[s] = issued
		:: holder == who ->
			if :: left < LEASE -> left = LEASE :: else fi;
			issue(); kr[s] = GRANT; kt[s] = issued
		:: else ->
			enlist(who); kr[s] = REFUSE
		fi
	:: kk[s] == REN ->
		if
#ifdef RENEW_ANY
		:: holder != NONE -> left = LEASE; kr[s] = GRANT;
			renewed = (holder == who);
			assert(renewed) /* no command renews a lock of another owner */
#else
		:: holder == who ->
			if :: left < LEASE -> left = LEASE :: else fi;
			kr[s] = GRANT
#endif
#ifdef RENEWS_BACK
		:: holder == NONE -> holder = who; left = LEASE; kr[s] = GRANT
#endif
		:: else -> kr[s] = NOTHING
		fi
	:: kk[s] == REL -> release(who, kh[s], frees); kr[s] = y; if :: y == TO_NEXT -> kt[s] = issued :: else fi
	fi;
	if :: kk[s] != REL -> ends(kk[s], kr[s]) :: else fi
}

/* release grants the lock of name to the next process or to nextOwner, or frees it; y is the reply. */
inline release(name, nextOwner, frees) {
	begins(name, nextOwner, frees);
	if
#ifdef RELEASE_ANY
	:: holder == NONE ->
#else
	:: holder != name ->
#endif
		x = 0;
		do
		:: x < queueSize && queue[x] != name -> x++
		:: else -> break
		od;
		if :: x < queueSize -> unlist(x) :: else fi;
		y = NOTHING
	:: else ->
		/* No command frees a lock whose holder considers its lease valid. */
		assert(!((ph[holder] == HELD || ph[holder] == OFFERED) && trust[holder] > 0));
		if
		:: frees -> gone(); y = ASIDE
		:: else ->
			who = NONE;
			do
			:: queueSize == 0 || who != NONE -> break
			:: else ->
				who = queue[0];
				unlist(0);
				if
				:: nextOwner != NONE && whose[who] == whose[nextOwner] -> who = nextOwner
				:: dead[whose[who]] -> who = NONE
				:: else
				fi
			od;
			if :: who == NONE -> who = nextOwner :: else fi;
			if
			:: who == NONE -> gone(); y = FREED
			:: else ->
				holder = who; left = OFFER;
				if
				:: who == nextOwner ->
#ifdef NEXT_OWNERS_TOKEN
					y = TO_NEXT
#else
					issue(); y = TO_NEXT
#endif
				:: else ->
#ifdef GRANT_BY_MESSAGE
					notified[whose[who]] = who;
#endif
					if :: nextOwner != NONE -> enlist(nextOwner) :: else fi;
					y = FREED
				fi
			fi
		fi
	fi;
	ends(REL, y)
}

/* ---- a process: what internal/lockstate does ---- */

inline wake(proc) { if :: size[proc] > 0 -> awake[proc] = 1 :: else fi }

inline mustRelease(name) {
	if
	:: uncertain[name] -> reconcile[name] = 2
	:: else -> if :: reconcile[name] == 0 -> reconcile[name] = 1 :: else fi
	fi
}

inline unhold(name) {
	if
	:: held[whose[name]] == name ->
		held[whose[name]] = NONE;
#ifndef NO_UNHOLD
		wake(whose[name])
#endif
	:: else
	fi
}

/* fail ends an acquisition that no caller holds. */
inline fail(name) {
	if :: LIVES(name) -> ph[name] = OVER; trust[name] = 0 :: else fi;
	unhold(name);
	if :: got[name] || traced[name] || uncertain[name] -> mustRelease(name) :: else fi
}

/* mayRun records that a request for name may be executed late. */
inline mayRun(name) {
	uncertain[name] = 1;
	if :: ph[name] == OVER -> mustRelease(name) :: else fi
}

/* quit removes caller from the local queue. */
inline quit(caller) {
	p = HOME(caller);
	j = 0;
	do
	:: localQueue[p * NC + j] != caller -> j++
	:: else -> break
	od;
	for (m : j .. NC - 2) { localQueue[p * NC + m] = localQueue[p * NC + m + 1] }
	localQueue[p * NC + NC - 1] = 0;
	size[p]--;
	requested[caller] = 0; inFlight[caller] = 0;
	if
	:: size[p] == 0 ->
		if :: ticket[p] != NONE -> fail(ticket[p]) :: else fi;
		if :: offered[p] != NONE -> fail(offered[p]) :: else fi;
		ticket[p] = NONE; offered[p] = NONE; awake[p] = 0; alarm[p] = 0; quiet[p] = 0
	:: j == 0 && size[p] > 0 ->
		awake[p] = 0;
		if
		:: offered[p] == NONE && held[p] != NONE ->
#ifndef NO_ALARM
			alarm[p] = 1
#endif
		:: else -> wake(p)
		fi
	:: else
	fi
}

/* hold: caller now holds the lock as name. */
inline hold(caller, name) {
	if
	:: trust[name] > 0 ->
		for (m : 0 .. NC - 1) { assert(m == caller || !TRUSTS(m)) } /* at most one caller has a valid lease */
		assert(token[name] > begun);                                /* tokens increase in the order of acquisitions */
		begun = token[name]
	:: else
	fi;
	cs[caller] = HOLDS; hn[caller] = name;
	idle = 0;
	quit(caller)
}

/* adopt updates the local queue of process proc after a grant for name to one of its callers. */
inline adopt(name, proc) {
	if
	:: offered[proc] != NONE && offered[proc] != name -> q = offered[proc]; fail(q); offered[proc] = NONE
	:: else
	fi;
	known = (offered[proc] == name);
	ticket[proc] = NONE; offered[proc] = NONE
}

/* extend makes the lease of name valid for d from the time when a command of that age was sent. */
inline extend(name, d, age) {
	if
	:: d > age && trust[name] < d - age -> trust[name] = d - age
	:: else
	fi
}

/* offer lets the first local waiter take name, which has the lock. */
inline offer(name) {
	ph[name] = OFFERED; offered[whose[name]] = name; held[whose[name]] = name;
	wake(whose[name])
}

/* granted: the reply to request s, whose caller waits, is a grant. */
inline granted(s) {
	c = kc[s]; n = kn[s];
	LATE(s, LEASE);
	adopt(n, HOME(c));
#ifdef UNTIL_FROM_REPLY
	late = 0;
	x = 0;
#else
	x = AGE(s);
#endif
	if
	:: known && ph[n] == OVER -> fail(n); requested[c] = 0
	:: known && ph[n] != OVER ->
		extend(n, LEASE, x); ph[n] = HELD;
#ifndef FIRST_TOKEN
		token[n] = kt[s];
#endif
		b = 1
	:: !known && late -> uncertain[n] = 1; fail(n); requested[c] = 0
	:: !known && !late && ph[n] == OVER -> got[n] = 1; uncertain[n] = 1; fail(n); requested[c] = 0
	:: else ->
		got[n] = 1; token[n] = kt[s]; ph[n] = HELD; held[HOME(c)] = n;
		extend(n, LEASE, x);
		b = 1
	fi
}

/* grantedNext: release s, which names a next owner, has its reply. */
inline grantedNext(s) {
	q = kh[s]; p = whose[q];
	known = (size[p] > 0 && ticket[p] == q);
	if
	:: known && kr[s] == TO_NEXT && !late ->
		ticket[p] = NONE; got[q] = 1; token[q] = kt[s];
#ifdef OFFER_FROM_REPLY
		extend(q, OFFER, 0);
#else
		extend(q, OFFER, AGE(s));
#endif
		offer(q)
	:: known && kr[s] == TO_NEXT && late -> wake(p)
	:: else
	fi;
#ifndef GRANTED_NEXT_OVER
	if :: ph[q] == OVER -> mustRelease(q) :: else fi
#endif
}

/* ---- housekeeping ---- */

/* recycle: owner strings without references are reused as new ones. */
inline recycle() {
#ifndef TRACE
	for (i : 0 .. NN - 1) {
		b = (ph[i] == OVER && reconcile[i] == 0);
		for (m : 0 .. NC - 1) { if :: hn[m] == i -> b = 0 :: else fi }
		for (m : 0 .. NP - 1) {
			if :: ticket[m] == i || offered[m] == i || held[m] == i -> b = 0 :: else fi
		}
#ifndef OWNER_TWICE
		if :: holder == i -> b = 0 :: else fi;
		for (m : 0 .. NP - 1) { if :: m < queueSize && queue[m] == i -> b = 0 :: else fi }
		for (m : 0 .. NK - 1) {
			if :: kk[m] != 0 && (kn[m] == i || kh[m] == i) -> b = 0 :: else fi
		}
#else
		for (m : 0 .. NK - 1) {
			if :: kk[m] != 0 && !copy[m] && (kn[m] == i || kh[m] == i) -> b = 0 :: else fi
		}
#endif
		if :: b -> forget(i) :: else fi;
		if :: ph[i] == OVER -> token[i] = 0 :: else fi
	}
	/* Only the order of tokens matters, so they are renumbered. */
	y = 0;
	for (i : 1 .. issued) {
		b = (begun == i || issued == i);
		for (m : 0 .. NN - 1) { if :: token[m] == i -> b = 1 :: else fi }
		for (m : 0 .. NK - 1) { if :: kt[m] == i -> b = 1 :: else fi }
		if
		:: b ->
			y++;
			if :: begun == i -> begun = y :: else fi;
			for (m : 0 .. NN - 1) { if :: token[m] == i -> token[m] = y :: else fi }
			for (m : 0 .. NK - 1) { if :: kt[m] == i -> kt[m] = y :: else fi }
		:: else
		fi
	}
	issued = y
#endif
}

/* check: if no command is in flight, and no caller waits or holds, there is no key. */
inline check() {
	b = 1;
	for (m : 0 .. NC - 1) { if :: cs[m] == WAITS || cs[m] == HOLDS -> b = 0 :: else fi }
	for (m : 0 .. NK - 1) { if :: kk[m] != 0 -> b = 0 :: else fi }
	for (m : 0 .. NN - 1) { if :: reconcile[m] != 0 -> b = 0 :: else fi }
	for (m : 0 .. NP - 1) { if :: dead[m] -> b = 0 :: else fi }
	assert(!b || holder == NONE);
	for (m : 0 .. NP - 1) {
		assert(!b || held[m] == NONE && ticket[m] == NONE && offered[m] == NONE);
		/* A local queue always has something that will wake it. */
		assert(size[m] == 0 || awake[m] || alarm[m] || held[m] != NONE && ph[held[m]] == OVER)
	}
}

inline tick() {
	printf("a tick\n");
	for (m : 0 .. NN - 1) { if :: trust[m] > 0 -> trust[m]-- :: else fi }
	if
	:: left > 0 ->
		left--;
		if :: left == 0 -> gone() :: else fi
	:: else
	fi;
	/* Only commands whose reply extends a lease have an age. */
	for (m : 0 .. NK - 1) {
		if
		:: (kk[m] == REQ && kc[m] != NONE || kk[m] == REN || kk[m] == REL && kh[m] != NONE) && !copy[m] && ka[m] < LEASE -> ka[m]++
		:: else
		fi
	}
	b = 0;
	for (m : 0 .. NC - 1) { if :: cs[m] == WAITS -> b = 1 :: else fi }
	for (m : 0 .. NC - 1) { if :: TRUSTS(m) -> b = 0 :: else fi }
	if :: b -> idle++ :: else -> idle = 0 fi;
	for (m : 0 .. NP - 1) { if :: size[m] > 0 -> quiet[m] = 1 :: else fi };
	assert(idle <= IDLE_MOST) /* no waiter waits indefinitely */
}

#include "events.pml"
