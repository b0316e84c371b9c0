/*
 * The plain lock: its line, the hand-over to another process, and passing on inside
 * a process. README.md says how to read this file, and what it leaves out.
 *
 * Each step of the model is one event: of a caller, of the network, of the server, or of
 * the clock. The state is global, and the only process picks any event that is enabled.
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
#define NK 2      /* commands under way at a time, with late copies */
#endif
#ifndef FAULTS
#define FAULTS 1  /* how much may go wrong in a history */
#endif
#ifndef CALLS
#define CALLS 3   /* how many calls begin */
#endif
#ifndef DELAYS
#define DELAYS 1  /* in how many ticks something that is due does not happen */
#endif
#ifndef LEASE
#define LEASE 3   /* of a grant, in ticks */
#endif
#ifndef OFFER
#define OFFER 2   /* of a grant by a release, until its owner asks */
#endif
#ifndef PASSES
#define PASSES 1  /* how often in a row a lock is passed on inside a process */
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

/* What has become of an owner string: the phases of a tenure. */
#define UNUSED  0
#define QUEUED  1  /* the ticket of a line */
#define OFFERED 2  /* its process has the lock, for the first of the line to take */
#define HELD    3  /* a caller has the lock */
#define OVER    4

/* Commands. */
#define ASK 1      /* reentrant_acquire */
#define REL 2      /* reentrant_release */
#define REN 3      /* reentrant_renew */

/* What the server answered. */
#define GRANT   1  /* ASK, REN: the owner has the lock */
#define REFUSE  2  /* ASK: another owner has it */
#define FREED   3  /* REL: the lock is free, or another process has it */
#define INHERIT 4  /* REL: the heir has it */
#define ASIDE   5  /* REL: it is free, and others come first */
#define NOTHING 6  /* REL, REN: the owner has nothing */

/* Callers. */
byte cs[NC];            /* what caller c does */
byte hn[NC] = NONE;     /* HOLDS: by which owner string */
bit  asked[NC];         /* WAITS: it has asked */
bit  asking[NC];        /* WAITS: its question has no answer yet */

/* The line of process p. */
byte line[NP * NC];
byte size[NP];
bit  roused[NP];        /* the first of the line looks for itself when it should ask */
bit  alarm[NP];         /* the line will be roused */
bit  quiet[NP];         /* a tick has passed since the line looked */
byte ticket[NP] = NONE;
byte offered[NP] = NONE;
byte held[NP] = NONE;   /* the owner string by which the process has the lock */
bit  dead[NP];

/* Owner strings. */
byte ph[NN];
byte whose[NN];            /* its process */
bit  unsure[NN];        /* a question for it may be carried out late */
bit  traced[NN];        /* Redis may have it in the queue */
bit  got[NN];           /* it was granted the lock */
byte doubt[NN];         /* 1: to settle, 2: and to look again */
byte trust[NN];         /* for how long its process trusts that it has the lock */
byte passed[NN];        /* how often it was passed on */
byte token[NN];

/* The server. */
byte holder = NONE;
byte left;              /* of the lease */
byte queue[NP];         /* owner strings, one of a process at the most */
byte standing;
byte issued;            /* the latest token */

#ifdef GRANT_BY_MESSAGE
byte told[NP] = NONE;   /* the message to process p that is under way: which owner string has the lock */
#endif

/* Commands under way. */
byte kk[NK];            /* 0 is none */
byte kn[NK];            /* for which owner string */
byte kc[NK] = NONE;     /* ASK: the caller that waits for the answer */
byte kh[NK] = NONE;     /* REL: the heir */
byte ka[NK];            /* how long ago it was sent */
byte kr[NK];            /* the answer; 0 before it is carried out */
byte kt[NK];            /* the token in the answer */
byte kg[NK];            /* what passed was when it was sent */
bit  copy[NK];          /* a copy that arrives late: nobody hears the answer */

byte calls;
byte faults;
byte delays;
byte idle;              /* for how long a caller has been waiting while no caller trusts */
byte begun;             /* the latest token of a caller that came to hold the lock */

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
#define FIRST(c)   (size[HOME(c)] > 0 && line[HOME(c) * NC] == c)
#define TRUSTS(c)  (cs[c] == HOLDS && trust[hn[c]] > 0)
#ifdef TRACE
#define FAULT      true
#else
#define FAULT      (faults < FAULTS)
#endif

/* ---- a few words ---- */

/* x is the number of questions for name that have no answer yet. */
inline countPending(name) {
	x = 0;
	for (m : 0 .. NK - 1) {
		if :: kk[m] == ASK && kn[m] == name && !copy[m] -> x++ :: else fi
	}
}

/* k is a slot for a command; NK if there is none. */
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

/* q is an owner string that nobody has; NN if there is none. */
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
	ph[name] = UNUSED; whose[name] = 0; unsure[name] = 0; traced[name] = 0; got[name] = 0;
	doubt[name] = 0; trust[name] = 0; token[name] = 0;
#ifdef OWNER_TWICE
	passed[name] = (passed[name] + PASSES + 1) % 250
#else
	passed[name] = 0
#endif
}

/* ---- the server: what the scripts do ---- */

#ifdef STEPS
/* has notes what the server has. */
inline has() {
	c_code { step_put(now.holder); step_put(now.left); step_put(now.standing); step_puts(now.queue, NP); }
}

/* begins notes a command: its owner string and heir, and whether it is to let the lock go. */
inline begins(name, heir, letGo) {
	step[0] = name; step[1] = heir; step[2] = letGo;
	c_code { step_begin(); step_put(NP); step_put(NN); step_put(LEASE); step_put(OFFER); step_puts(now.whose, NN); step_puts(now.dead, NP); };
	has()
}

inline ends(what, answer) {
	step[3] = what; step[4] = answer;
	c_code { step_puts(step, 5); };
	has();
	c_code { step_end(); }
}
#else
#define begins(name, heir, letGo) skip
#define ends(what, answer) skip
#endif

/* enlist puts name into the queue: in the place of its process, or at the end. */
inline enlist(name) {
	x = 0;
	do
	:: x < standing && whose[queue[x]] != whose[name] -> x++
	:: else -> break
	od;
	queue[x] = name;
	if :: x == standing -> standing++ :: else fi
}

/* unlist takes the entry at this place out of the queue. */
inline unlist(at) {
	for (m : at .. NP - 2) { queue[m] = queue[m + 1] }
	queue[NP - 1] = 0;
	standing--
}

inline unqueue() {
	for (m : 0 .. NP - 1) { queue[m] = 0 }
	standing = 0
}

inline gone() { holder = NONE; left = 0; unqueue() }

inline issue() { issued++ }

/* serve carries command s out. letGo says that the release frees the lock for others. */
inline serve(s, letGo) {
	who = kn[s];
	/* Nothing of an earlier tenure touches a later one by the same owner string. */
	assert(kk[s] == REN || kg[s] == passed[who] || !LIVES(who) || !got[who]);
	begins(who, NONE, 0);
	if
	:: kk[s] == ASK ->
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
			assert(renewed) /* nor renews what is another's */
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
	:: kk[s] == REL -> release(who, kh[s], letGo); kr[s] = y; if :: y == INHERIT -> kt[s] = issued :: else fi
	fi;
	if :: kk[s] != REL -> ends(kk[s], kr[s]) :: else fi
}

/* release gives the lock of name to the next process, to heir, or lets it go; y is the answer. */
inline release(name, heir, letGo) {
	begins(name, heir, letGo);
	if
#ifdef RELEASE_ANY
	:: holder == NONE ->
#else
	:: holder != name ->
#endif
		x = 0;
		do
		:: x < standing && queue[x] != name -> x++
		:: else -> break
		od;
		if :: x < standing -> unlist(x) :: else fi;
		y = NOTHING
	:: else ->
		/* Nobody frees a lock that somebody trusts to have. */
		assert(!((ph[holder] == HELD || ph[holder] == OFFERED) && trust[holder] > 0));
		if
		:: letGo -> gone(); y = ASIDE
		:: else ->
			who = NONE;
			do
			:: standing == 0 || who != NONE -> break
			:: else ->
				who = queue[0];
				unlist(0);
				if
				:: heir != NONE && whose[who] == whose[heir] -> who = heir
				:: dead[whose[who]] -> who = NONE
				:: else
				fi
			od;
			if :: who == NONE -> who = heir :: else fi;
			if
			:: who == NONE -> gone(); y = FREED
			:: else ->
				holder = who; left = OFFER;
				if
				:: who == heir ->
#ifdef HEIRS_TOKEN
					y = INHERIT
#else
					issue(); y = INHERIT
#endif
				:: else ->
#ifdef GRANT_BY_MESSAGE
					told[whose[who]] = who;
#endif
					if :: heir != NONE -> enlist(heir) :: else fi;
					y = FREED
				fi
			fi
		fi
	fi;
	ends(REL, y)
}

/* ---- a process: what internal/lockstate does ---- */

inline rouse(proc) { if :: size[proc] > 0 -> roused[proc] = 1 :: else fi }

inline giveBack(name) {
	if
	:: unsure[name] -> doubt[name] = 2
	:: else -> if :: doubt[name] == 0 -> doubt[name] = 1 :: else fi
	fi
}

inline unhold(name) {
	if
	:: held[whose[name]] == name ->
		held[whose[name]] = NONE;
#ifndef NO_UNHOLD
		rouse(whose[name])
#endif
	:: else
	fi
}

/* fail ends name, which nobody came to hold. */
inline fail(name) {
	if :: LIVES(name) -> ph[name] = OVER; trust[name] = 0 :: else fi;
	unhold(name);
	if :: got[name] || traced[name] || unsure[name] -> giveBack(name) :: else fi
}

/* mayRun notes that a question for name may be carried out late. */
inline mayRun(name) {
	unsure[name] = 1;
	if :: ph[name] == OVER -> giveBack(name) :: else fi
}

/* quit has caller, which is in line, leave it. */
inline quit(caller) {
	p = HOME(caller);
	j = 0;
	do
	:: line[p * NC + j] != caller -> j++
	:: else -> break
	od;
	for (m : j .. NC - 2) { line[p * NC + m] = line[p * NC + m + 1] }
	line[p * NC + NC - 1] = 0;
	size[p]--;
	asked[caller] = 0; asking[caller] = 0;
	if
	:: size[p] == 0 ->
		if :: ticket[p] != NONE -> fail(ticket[p]) :: else fi;
		if :: offered[p] != NONE -> fail(offered[p]) :: else fi;
		ticket[p] = NONE; offered[p] = NONE; roused[p] = 0; alarm[p] = 0; quiet[p] = 0
	:: j == 0 && size[p] > 0 ->
		roused[p] = 0;
		if
		:: offered[p] == NONE && held[p] != NONE ->
#ifndef NO_ALARM
			alarm[p] = 1
#endif
		:: else -> rouse(p)
		fi
	:: else
	fi
}

/* hold is when caller comes to hold the lock by name. */
inline hold(caller, name) {
	if
	:: trust[name] > 0 ->
		for (m : 0 .. NC - 1) { assert(m == caller || !TRUSTS(m)) } /* no two who trust at once */
		assert(token[name] > begun);                                /* tokens grow in order of grants */
		begun = token[name]
	:: else
	fi;
	cs[caller] = HOLDS; hn[caller] = name;
	idle = 0;
	quit(caller)
}

/* adopt is what a grant for name to a caller of process proc does to its line. */
inline adopt(name, proc) {
	if
	:: offered[proc] != NONE && offered[proc] != name -> q = offered[proc]; fail(q); offered[proc] = NONE
	:: else
	fi;
	known = (offered[proc] == name);
	ticket[proc] = NONE; offered[proc] = NONE
}

/* extend has name trusted for d from when a command of that age was sent. */
inline extend(name, d, age) {
	if
	:: d > age && trust[name] < d - age -> trust[name] = d - age
	:: else
	fi
}

/* offer has the first of the line take name, which has the lock. */
inline offer(name) {
	ph[name] = OFFERED; offered[whose[name]] = name; held[whose[name]] = name;
	rouse(whose[name])
}

/* granted is when command s, a question with a caller, was answered by a grant. */
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
	:: known && ph[n] == OVER -> fail(n); asked[c] = 0
	:: known && ph[n] != OVER ->
		extend(n, LEASE, x); ph[n] = HELD;
#ifndef FIRST_TOKEN
		token[n] = kt[s];
#endif
		b = 1
	:: !known && late -> unsure[n] = 1; fail(n); asked[c] = 0
	:: !known && !late && ph[n] == OVER -> got[n] = 1; unsure[n] = 1; fail(n); asked[c] = 0
	:: else ->
		got[n] = 1; token[n] = kt[s]; ph[n] = HELD; held[HOME(c)] = n;
		extend(n, LEASE, x);
		b = 1
	fi
}

/* inherit is when command s, a release with an heir, was answered. */
inline inherit(s) {
	q = kh[s]; p = whose[q];
	known = (size[p] > 0 && ticket[p] == q);
	if
	:: known && kr[s] == INHERIT && !late ->
		ticket[p] = NONE; got[q] = 1; token[q] = kt[s];
#ifdef OFFER_FROM_REPLY
		extend(q, OFFER, 0);
#else
		extend(q, OFFER, AGE(s));
#endif
		offer(q)
	:: known && kr[s] == INHERIT && late -> rouse(p)
	:: else
	fi;
#ifndef INHERIT_OVER
	if :: ph[q] == OVER -> giveBack(q) :: else fi
#endif
}

/* ---- housekeeping ---- */

/* Owner strings that nothing refers to any more are used again, as new ones. */
inline recycle() {
#ifndef TRACE
	for (i : 0 .. NN - 1) {
		b = (ph[i] == OVER && doubt[i] == 0);
		for (m : 0 .. NC - 1) { if :: hn[m] == i -> b = 0 :: else fi }
		for (m : 0 .. NP - 1) {
			if :: ticket[m] == i || offered[m] == i || held[m] == i -> b = 0 :: else fi
		}
#ifndef OWNER_TWICE
		if :: holder == i -> b = 0 :: else fi;
		for (m : 0 .. NP - 1) { if :: m < standing && queue[m] == i -> b = 0 :: else fi }
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
	/* Tokens count by their order alone. */
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

/* check: when nothing is under way, and no caller waits or holds, the key is gone. */
inline check() {
	b = 1;
	for (m : 0 .. NC - 1) { if :: cs[m] == WAITS || cs[m] == HOLDS -> b = 0 :: else fi }
	for (m : 0 .. NK - 1) { if :: kk[m] != 0 -> b = 0 :: else fi }
	for (m : 0 .. NN - 1) { if :: doubt[m] != 0 -> b = 0 :: else fi }
	for (m : 0 .. NP - 1) { if :: dead[m] -> b = 0 :: else fi }
	assert(!b || holder == NONE);
	for (m : 0 .. NP - 1) {
		assert(!b || held[m] == NONE && ticket[m] == NONE && offered[m] == NONE);
		/* A line always has something that will make it look. */
		assert(size[m] == 0 || roused[m] || alarm[m] || held[m] != NONE && ph[held[m]] == OVER)
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
	/* The age of a command counts where its answer is trusted from when it was sent. */
	for (m : 0 .. NK - 1) {
		if
		:: (kk[m] == ASK && kc[m] != NONE || kk[m] == REN || kk[m] == REL && kh[m] != NONE) && !copy[m] && ka[m] < LEASE -> ka[m]++
		:: else
		fi
	}
	b = 0;
	for (m : 0 .. NC - 1) { if :: cs[m] == WAITS -> b = 1 :: else fi }
	for (m : 0 .. NC - 1) { if :: TRUSTS(m) -> b = 0 :: else fi }
	if :: b -> idle++ :: else -> idle = 0 fi;
	for (m : 0 .. NP - 1) { if :: size[m] > 0 -> quiet[m] = 1 :: else fi };
	assert(idle <= IDLE_MOST) /* no waiter is forgotten */
}

#include "events.pml"
