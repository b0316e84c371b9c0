/*
 * The fair lock: the queue in Redis, heartbeats, and hand-offs inside a process.
 * README.md explains how to read this file, and what it leaves out.
 *
 * As in plain.pml, each step is one event, and the only SPIN process picks any that is enabled.
 * A caller calls once, so its number is also its owner string. A caller that restarts is another
 * caller. The callers of a process arrive in the order of their numbers.
 */

#ifndef NP
#define NP 2        /* processes */
#endif
#ifndef NC
#define NC 3        /* callers; caller c is of process HOME(c) */
#endif
#ifndef NK
#define NK 2        /* commands in flight at a time, with delayed duplicates */
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef KINDS
#define KINDS 7     /* of faults, a set: 1 connections, 2 waits and holds that end, 4 processes that are killed */
#endif
#ifndef DELAYS
#define DELAYS 0    /* ticks in which something that is due does not happen */
#endif
#ifndef LEASE
#define LEASE 2     /* of a grant, in ticks */
#endif
#ifndef OFFER
#define OFFER 2     /* of a grant by a release */
#endif
#ifndef TIMEOUT
#define TIMEOUT 2  /* the waiter timeout: ticks for which a waiter counts as alive without a heartbeat. A tick is the time between two heartbeats */
#endif
#ifndef PASSES
#define PASSES 1    /* hand-offs in a row inside a process */
#endif
#ifndef IDLE_MOST
#define IDLE_MOST 255
#endif
#ifdef TRACE
#define PROCS processes /* of the history */
#else
#define PROCS NP
#endif
#define HOME(c) ((c) % PROCS)
#define NONE 255
#define QN (NC + 1)

/* What a caller does. */
#define AWAY  0
#define WAITS 1
#define HOLDS 2
#define OUT   3     /* it has left, and does not return */
#define DEAD  4

/* The state of an owner string. */
#define UNUSED  0
#define IN_FLIGHT  1
#define OFFERED 2   /* its process has the lock as this owner, and a waiter can take it */
#define HELD    3   /* a caller holds the lock as this owner */
#define OVER    4

/* Commands. */
#define REQ 1       /* fair_acquire */
#define ENT 2       /* fair_keep: waiters join the queue */
#define KEP 3       /* fair_keep, a heartbeat: a delayed duplicate, because other heartbeats take no time */
#define REL 4       /* fair_release */

/* The reply of the server. */
#define GRANT   1   /* REQ: the owner has the lock */
#define REFUSE  2   /* REQ, ENT: it is in the queue */
#define FREED   3   /* REL: the lock is free */
#define TO_NEXT 4   /* REL: the next owner has it */
#define NOTHING 5   /* REL: the owner did not have the lock */

#define IN(set, c) (((set) >> (c)) & 1)

/* Callers. */
byte cs[NC];            /* the state of caller c */
byte hn[NC] = NONE;     /* HOLDS: its owner string */
bit  reason[NC];        /* WAITS: it has a reason to send a request */
bit  inFlight[NC];        /* WAITS: its request has no reply yet */
bit  enters[NC];        /* WAITS: its process adds it to the queue, */
bit  sent[NC];          /* with an entry that has no reply yet */
bit  queued[NC];        /* WAITS: it is in the queue as far as its process knows: heartbeats extend its deadline */

/* Owner strings. */
byte ph[NC];
byte requested[NC];         /* how many requests were sent: 0, 1, or more */
bit  uncertain[NC];        /* a request may be executed late */
bit  traced[NC];        /* it may be in the queue in Redis */
bit  got[NC];           /* it was granted the lock */
bit  taken[NC];         /* its caller has the lock as another owner, and a later reply for this one changes nothing */
byte reconcile[NC];         /* 1: release it, 2: release it again after that */
byte trust[NC];         /* the ticks for which its process considers the lease valid */
byte passed[NC];        /* how often it handed the lock off inside the process */
byte served[NC];        /* a set: owners to which it was handed off; they are in the queue until its release */

/* For the ordering guarantee. */
byte ahead[NC];         /* a set: owners that knew they were in the queue before it sent its request */
byte placed[NC];        /* 1: it is in the queue, 2: and its caller knows; 0 also after its waiter timeout */

/* Processes. */
byte held[NP] = NONE;   /* the owner string as which it has the lock */
byte offered[NP] = NONE;
byte to[NP] = NONE;     /* the waiter to which the lock is offered */
byte next1[NP] = NONE;  /* the next in the queue according to the grant, */
byte next2[NP] = NONE;  /* and after that */
bit  beat[NP];          /* a heartbeat is due */
bit  dead[NP];

/* The server. */
byte holder = NONE;
byte left;              /* remaining lease time */
byte queue[QN];
byte size;
byte dl[NC];            /* its deadline plus 1: 0 is no deadline */
bit  notified[NC];          /* a message that it is next is in flight */
#ifdef OWN_CLOCK
byte silentFor[NC];         /* time since it last sent a command */
#endif

/* Commands in flight. */
byte kk[NK];            /* 0 is none */
byte kn[NK];            /* for which owner string; ENT, KEP: the first of the set */
bit  kc[NK];            /* REQ: its caller waits for the reply */
byte ke[NK];            /* ENT, KEP: a set of owner strings; REL: the served ones */
byte kh[NK] = NONE;     /* REL: the next owner that it names */
byte ka[NK];            /* how long ago it was sent */
byte kr[NK];            /* the reply; 0 before it is executed */
byte kf[NK] = NONE;     /* in the reply: the next in the queue, */
byte kg[NK] = NONE;     /* and after that */
byte ky[NK];            /* ENT: a set, the owners that should send a request now */
bit  copy[NK];          /* a delayed duplicate: its reply is ignored */

byte faults;
byte delays;
byte idle;              /* how long a caller has been waiting while no caller has a valid lease */

hidden byte i, j, k, m, n, c, p, q, x, y, who, first, was, set, f1, f2;
hidden byte b, known, late, both, overtakes, remains, freed, forgotten;
hidden byte step[5], tells;

#ifdef STEPS
#include "steps.pml"
#endif

#ifdef TRACE
#define SETS 17
#include "trace.pml"
#define SOONER(m, n) (rank[m] < rank[n])
/* A caller that restarts with another owner string is another caller, which takes the position of the first in its local queue. Until
   then, and until the first has left the queue, a caller that arrives does not send a request at once. */
bit lingers[NC];
byte rank[NC], ranks;
#define STANDS(c) (cs[c] == WAITS || lingers[c])
#define LINGERS(c) lingers[c] = 1;
#define RESTART(c) \
	if \
	:: tb > 0 -> lingers[tb - 1] = 0; rank[c] = rank[tb - 1]; b = 1 \
	:: else -> rank[c] = ranks; ranks++ \
	fi;
#else
#define SOONER(m, n) false
#define STANDS(c) (cs[c] == WAITS)
#define LINGERS(c)
#define RESTART(c)
#define LATE(s, most) late = (ka[s] >= (most))
#define AGE(s) ka[s]
#define ON(e) d_step {
#define EXPECT(x)
#define END tidy(); check(); m = 0 }
#endif

#define SAY(what, of) printf(what, of); printf("\n");
#define LIVES(n)   (ph[n] == IN_FLIGHT || ph[n] == OFFERED || ph[n] == HELD)
#define TRUSTS(c)  (cs[c] == HOLDS && trust[hn[c]] > 0)
#ifdef TRACE
#define FAULT(kind) true
#else
#define FAULT(kind) (faults < FAULTS && (KINDS & kind))
#endif
#define ABOUT(s, n) (kk[s] != 0 && (kn[s] == n || kh[s] == n || (kk[s] == ENT || kk[s] == KEP) && IN(ke[s], n)))
#define REQUEST(s, n) (!copy[s] && (kk[s] == REQ && kn[s] == n || kk[s] == ENT && IN(ke[s], n)))

/* slot: k is a free slot for a command; NK if there is none. */
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

inline drop(at) {
	kk[at] = 0; kn[at] = 0; kc[at] = 0; ke[at] = 0; kh[at] = NONE; ka[at] = 0;
	kr[at] = 0; kf[at] = NONE; kg[at] = NONE; ky[at] = 0; copy[at] = 0
}

/* ---- the server: what the scripts do ---- */

#ifdef STEPS
/* has records the state of the server. */
inline has() {
	c_code { step_put(now.holder); step_put(now.left); step_put(now.size); step_puts(now.queue, QN); step_puts(now.dl, NC); }
}

inline begins() {
	tells = NONE;
	c_code { step_begin(); step_put(NC); step_put(NP); step_put(LEASE); step_put(OFFER); step_put(TIMEOUT); };
	has()
}

/* ends records a command: its kind, owner, set and next owner; its reply; and which owners it notifies. */
inline ends(what, name, these, nextOwner, reply) {
	step[0] = what; step[1] = name; step[2] = these; step[3] = nextOwner; step[4] = reply;
	c_code { step_puts(step, 5); step_put(f1); step_put(f2); step_put(tells); };
	has();
	c_code { step_end(); }
}
#else
#define begins() skip
#define ends(what, name, these, nextOwner, reply) skip
#endif

/* position: x is the position of name in the queue; size if it is not in the queue. */
inline position(name) {
	x = 0;
	do
	:: x < size && queue[x] != name -> x++
	:: else -> break
	od
}

inline unlist(at) {
	for (m : at .. QN - 2) { queue[m] = queue[m + 1] }
	queue[QN - 1] = 0;
	size--
}

/* leaves removes name from the queue. */
inline leaves(name) {
	position(name);
	if :: x < size -> unlist(x) :: else fi;
	dl[name] = 0
}

/* extendDeadline sets the deadline of name, at position x, to a waiter timeout from now. */
inline extendDeadline(name) {
#if defined(OWN_CLOCK)
	dl[name] = TIMEOUT + 1 - HOME(name); /* the clock of process 1 is one tick slow */
	silentFor[name] = 0
#elif defined(DEADLINES_ADD_UP)
	dl[name] = (x + 1) * TIMEOUT + 1
#else
	dl[name] = TIMEOUT + 1
#endif
}

/* enter adds name to the queue: it keeps its position, or comes last. */
inline enter(name) {
	position(name);
#ifdef ENTERS_TWICE
	if :: size < QN -> x = size :: else fi;
#endif
	if :: x == size -> queue[size] = name; size++; if :: placed[name] == 0 -> placed[name] = 1 :: else fi :: else fi;
	extendDeadline(name)
}

/* excused: name has lost its position, because it sent nothing for too long. */
inline excused(name) {
	placed[name] = 0;
	for (m : 0 .. NC - 1) { ahead[m] = ahead[m] & ~(1 << name) }
}

/* head removes dead owners from the front of the queue. first is the first living owner; NONE if there is none. */
inline head() {
	do
	:: size > 0 && dl[queue[0]] == 1 ->
		first = queue[0];
		unlist(0);
		dl[first] = 0;
#ifdef OWN_CLOCK
		if :: silentFor[first] >= TIMEOUT -> excused(first) :: else fi
#else
		excused(first)
#endif
	:: else -> break
	od;
	first = NONE;
	if
	:: size > 0 ->
		first = queue[0];
		if :: dl[first] == 0 -> dl[first] = TIMEOUT + 1 :: else fi
	:: else
	fi
}

/* following: f1 and f2 are the next in the queue, if they are of the process of name. */
inline following(name) {
	f1 = NONE; f2 = NONE;
	if :: size > 0 && HOME(queue[0]) == HOME(name) -> f1 = queue[0] :: else fi;
	if :: f1 != NONE && size > 1 && HOME(queue[1]) == HOME(name) -> f2 = queue[1] :: else fi
}

inline tell(name) { notified[name] = 1; tells = name }

#ifdef ENTERS_TWICE
#define ENTERS_AGAIN entering
#else
#define ENTERS_AGAIN 0
#endif

/* keep extends the deadlines of the owners of the set, or adds them to the queue; y is the set of those that should send a request. */
inline keep(these, entering) {
	begins();
	y = 0;
	was = (size > 0 -> queue[0] : NONE);
	for (j : 0 .. NC - 1) {
		if
		:: IN(these, j) ->
			position(j);
			if
			:: x < size && !(ENTERS_AGAIN) -> extendDeadline(j)
			:: holder == j -> y = y | (1 << j)
#ifdef HEARTBEAT_ENTERS
			:: (x == size || ENTERS_AGAIN) && holder != j -> enter(j)
#else
			:: (x == size || ENTERS_AGAIN) && holder != j && entering -> enter(j)
			:: x == size && holder != j && !entering -> y = y | (1 << j)
#endif
			fi
		:: else
		fi
	}
	if :: was == NONE && size > 0 -> was = queue[0] :: else fi;
	head();
	if
	:: holder == NONE && first != NONE ->
		if
#ifdef NO_TURN
		:: false
#else
		:: IN(these, first) -> y = y | (1 << first)
#endif
		:: !IN(these, first) && was != first -> tell(first)
		:: else
		fi
	:: else
	fi;
	ends(3 - entering, NONE, these, NONE, y)
}

/* serveRequest executes a request of name; y is the reply. */
inline serveRequest(name) {
	begins();
	f1 = NONE; f2 = NONE;
	if
	:: holder == name ->
		if :: left < LEASE -> left = LEASE :: else fi;
		following(name);
		y = GRANT
	:: else ->
		head();
		if
#ifdef BARGES
		:: holder == NONE ->
#else
		:: holder == NONE && (first == NONE || first == name) ->
#endif
			leaves(name);
			holder = name; left = LEASE;
			following(name);
			y = GRANT
		:: else ->
			enter(name);
			y = REFUSE
		fi
	fi;
	ends(1, name, 0, NONE, y)
}

/* release grants the lock of name to nextOwner if that is the first in the queue, or frees it. y is the reply. */
inline release(name, these, nextOwner) {
	begins();
	f1 = NONE; f2 = NONE;
	leaves(name);
#ifndef SERVED_STAY
	for (j : 0 .. NC - 1) { if :: IN(these, j) -> leaves(j) :: else fi }
#endif
	y = NOTHING;
	if
	:: holder == name || holder == NONE ->
		head();
		if
		:: holder == name ->
			freed = LIVES(name) && trust[name] > 0;
			assert(!freed); /* no command frees a lock whose holder considers its lease valid */
			holder = NONE; left = 0;
			y = FREED;
#ifdef ANY_NEXT_OWNER
			position(nextOwner);
			if :: nextOwner != NONE && x < size -> first = nextOwner :: else fi;
#endif
			if
			:: first != NONE && first == nextOwner ->
				leaves(nextOwner);
				holder = nextOwner; left = OFFER;
				following(nextOwner);
				y = TO_NEXT
			:: first != NONE && first != nextOwner -> tell(first)
			:: else
			fi
		:: else -> if :: first != NONE -> tell(first) :: else fi
		fi
	:: else
	fi;
	ends(4, name, these, nextOwner, y)
}

/* serve executes command s. */
inline serve(s) {
	if
	:: kk[s] == REQ -> who = kn[s]; serveRequest(who); kr[s] = y
	:: kk[s] == ENT -> set = ke[s]; f1 = NONE; f2 = NONE; keep(set, 1); kr[s] = REFUSE; ky[s] = y
	:: kk[s] == KEP -> set = ke[s]; f1 = NONE; f2 = NONE; keep(set, 0); kr[s] = REFUSE; ky[s] = y
	:: kk[s] == REL -> who = kn[s]; set = ke[s]; q = kh[s]; release(who, set, q); kr[s] = y
	fi;
	if :: kk[s] == REQ && kr[s] == GRANT || kr[s] == TO_NEXT -> kf[s] = f1; kg[s] = f2 :: else fi
}

/* ---- a process: what internal/lockstate does ---- */

inline mustRelease(name) {
#ifndef NO_RECONCILING
	if
	:: uncertain[name] -> reconcile[name] = 2
	:: else -> if :: reconcile[name] == 0 -> reconcile[name] = 1 :: else fi
	fi
#else
	skip
#endif
}

inline unhold(name) { if :: held[HOME(name)] == name -> held[HOME(name)] = NONE :: else fi }

/* fail ends an owner string that no caller holds. */
inline fail(name) {
	if :: LIVES(name) -> ph[name] = OVER; trust[name] = 0 :: else fi;
	unhold(name);
	if :: got[name] || traced[name] || uncertain[name] -> mustRelease(name) :: else fi
}

/* nextUp: y is the waiter of process p that is next in the queue in Redis; NONE if there is none. */
inline nextUp() {
	y = NONE;
#ifdef PASSES_TO_ANY
	for (m : 0 .. NC - 1) { if :: y == NONE && HOME(m) == p && cs[m] == WAITS && ph[m] == IN_FLIGHT -> y = m :: else fi }
#else
	do
	:: next1[p] == NONE -> break
	:: next1[p] != NONE && cs[next1[p]] == WAITS && ph[next1[p]] == IN_FLIGHT -> y = next1[p]; break
	:: else -> next1[p] = next2[p]; next2[p] = NONE
	od
#endif
}

/* quit removes caller from its local queue. A lock that was offered to it is offered to the next, or released. */
inline quit(caller) {
	p = HOME(caller);
	reason[caller] = 0; inFlight[caller] = 0; enters[caller] = 0; sent[caller] = 0; queued[caller] = 0;
	placed[caller] = 0; ahead[caller] = 0; notified[caller] = 0;
	if
	:: to[p] == caller ->
		q = offered[p];
		nextUp();
		if
		:: y != NONE && LIVES(q) -> to[p] = y
		:: else -> offered[p] = NONE; to[p] = NONE; fail(q)
		fi
	:: else
	fi
}

/* hold: caller now holds the lock as name. */
inline hold(caller, name) {
	to[HOME(caller)] = NONE; offered[HOME(caller)] = NONE;
	both = 0; overtakes = 0;
	for (m : 0 .. NC - 1) {
		if :: m != caller && TRUSTS(m) -> both = 1 :: else fi;
		if :: m != caller && IN(ahead[caller], m) && cs[m] == WAITS && placed[m] == 2 -> overtakes = 1 :: else fi
	}
	if
	:: trust[name] > 0 ->
		assert(!both);      /* at most one caller has a valid lease */
		assert(!overtakes)  /* no living waiter that knew that it waits, before this one sent its request, still waits */
	:: else
	fi;
	cs[caller] = HOLDS; hn[caller] = name;
	idle = 0;
	quit(caller)
}

/* extend makes the lease of name valid for d from the time when a command of that age was sent. */
inline extend(name, d, age) {
	if
	:: d > age && trust[name] < d - age -> trust[name] = d - age
	:: else
	fi
}

/* sending records that a request for caller is about to be sent. */
inline sending(caller) {
	if
	:: requested[caller] == 0 ->
		ahead[caller] = 0;
		for (m : 0 .. NC - 1) { if :: cs[m] == WAITS && placed[m] == 2 -> ahead[caller] = ahead[caller] | (1 << m) :: else fi }
	:: else
	fi;
	if :: requested[caller] < 2 -> requested[caller]++ :: else fi
}

/* granted: the reply to request s, whose caller waits, is a grant. */
inline granted(s) {
	c = kn[s]; p = HOME(c);
	LATE(s, LEASE);
	if
	:: offered[p] != NONE && offered[p] != c -> q = offered[p]; fail(q)
	:: else
	fi;
	known = (offered[p] == c);
	offered[p] = NONE; to[p] = NONE;
	if :: !late -> got[c] = 1 :: else fi;
	if
	:: ph[c] == OVER || late && !known ->
		uncertain[c] = 1; fail(c); cs[c] = OUT; quit(c)
	:: else ->
		ph[c] = HELD; held[p] = c;
#ifdef UNTIL_FROM_REPLY
		extend(c, LEASE, 0);
#else
		extend(c, LEASE, AGE(s));
#endif
		next1[p] = kf[s]; next2[p] = kg[s];
		hold(c, c)
	fi
}

/* grantedNext: release s, which names a next owner, has its reply. */
inline grantedNext(s) {
	q = kh[s]; p = HOME(q);
	LATE(s, OFFER);
	if
	:: kr[s] == TO_NEXT && ph[q] == IN_FLIGHT && cs[q] == WAITS ->
		if
		:: late || offered[p] != NONE -> reason[q] = 1
		:: else ->
			got[q] = 1; ph[q] = OFFERED;
			extend(q, OFFER, AGE(s));
			next1[p] = kf[s]; next2[p] = kg[s];
			offered[p] = q; to[p] = q; held[p] = q
		fi
	:: else
	fi
}

/* entered: an entry has added caller to the queue. */
inline entered(caller) {
	if
	:: taken[caller] || ph[caller] == OFFERED || ph[caller] == HELD
	:: !taken[caller] && (ph[caller] == OVER || cs[caller] != WAITS) ->
		uncertain[caller] = 1;
#ifndef NO_RECONCILING
		if :: reconcile[caller] == 0 -> reconcile[caller] = 1 :: else fi
#endif
	:: else ->
		queued[caller] = 1; traced[caller] = 1; enters[caller] = 0; sent[caller] = 0;
		if :: placed[caller] == 1 -> placed[caller] = 2 :: else fi
	fi
}

/* unheard: the reply to a request of name arrived, and its caller does not wait for it. */
inline unheard(name) {
	uncertain[name] = 1;
	if
	:: ph[name] == OVER ->
#ifndef NO_RECONCILING
		if :: reconcile[name] == 0 -> reconcile[name] = 1 :: else fi
#endif
	:: else -> if :: cs[name] == WAITS -> reason[name] = 1 :: else fi
	fi
}

inline lose(name) {
	p = HOME(name);
	for (m : 0 .. NC - 1) { if :: cs[m] == HOLDS && hn[m] == name -> cs[m] = OUT; hn[m] = NONE :: else fi }
	ph[name] = OVER; trust[name] = 0;
	unhold(name);
	if
	:: offered[p] == name ->
		c = to[p];
		offered[p] = NONE; to[p] = NONE;
		if
		:: c == name -> cs[c] = OUT; LINGERS(c) quit(c)
		:: else -> reason[c] = 1
		fi
	:: else
	fi;
	mustRelease(name)
}

/* broke: command s failed with an error. */
inline broke(s) {
	for (j : 0 .. NC - 1) {
		if
		:: REQUEST(s, j) ->
			uncertain[j] = 1;
			if
			:: ph[j] == OVER -> mustRelease(j)
			:: ph[j] != OVER && cs[j] == WAITS -> reason[j] = 1
			:: else
			fi;
			if
			:: kk[s] == ENT -> enters[j] = 0; sent[j] = 0
			:: kk[s] == REQ && kc[s] -> inFlight[j] = 0
			:: else
			fi
		:: else
		fi
	}
	if
	:: kk[s] == REL ->
		n = kn[s]; unhold(n);
#ifndef NO_RECONCILING
		reconcile[n] = 2
#endif
	:: else
	fi
}

inline crash(proc) {
	dead[proc] = 1; beat[proc] = 0;
	for (j : 0 .. NC - 1) {
		if
		:: HOME(j) == proc ->
			if :: cs[j] != AWAY -> ph[j] = OVER :: else fi;
			cs[j] = DEAD; hn[j] = NONE; reason[j] = 0; inFlight[j] = 0; enters[j] = 0; sent[j] = 0; queued[j] = 0;
			requested[j] = 0; uncertain[j] = 0; traced[j] = 0; got[j] = 0; taken[j] = 0; reconcile[j] = 0; trust[j] = 0; passed[j] = 0; served[j] = 0;
			ahead[j] = 0; placed[j] = 0; notified[j] = 0
		:: else
		fi
	}
	for (j : 0 .. NK - 1) {
		if
		:: kk[j] != 0 && HOME(kn[j]) == proc ->
			if
			:: kr[j] != 0 -> drop(j)
			:: else -> copy[j] = 1; kc[j] = 0; ka[j] = 0
			fi
		:: else
		fi
	}
	held[proc] = NONE; offered[proc] = NONE; to[proc] = NONE; next1[proc] = NONE; next2[proc] = NONE
}

/* ---- housekeeping ---- */

/* tidy resets what no longer matters, to keep the number of states small. */
inline tidy() {
	for (i : 0 .. NP - 1) {
		if :: held[i] == NONE && offered[i] == NONE -> next1[i] = NONE; next2[i] = NONE :: else fi
	}
	for (i : 0 .. NC - 1) {
		if
		:: ph[i] == OVER && reconcile[i] == 0 && (cs[i] == OUT || cs[i] == DEAD) ->
			b = 1;
			for (m : 0 .. NK - 1) { if :: ABOUT(m, i) -> b = 0 :: else fi }
			for (m : 0 .. NC - 1) { if :: LIVES(m) && IN(served[m], i) || hn[m] == i -> b = 0 :: else fi }
			if
			:: b ->
				uncertain[i] = 0; traced[i] = 0; got[i] = 0; taken[i] = 0; passed[i] = 0; served[i] = 0; requested[i] = 2; sent[i] = 0
			:: else
			fi
		:: else
		fi;
		if :: cs[i] != WAITS -> notified[i] = 0; placed[i] = 0; ahead[i] = 0 :: else fi
	}
	for (m : 0 .. NK - 1) { if :: copy[m] -> kf[m] = NONE; kg[m] = NONE; ky[m] = 0 :: else fi }
}

/* check: if no command is in flight, and no caller waits or holds, nothing is left. */
inline check() {
	b = 1;
	for (m : 0 .. NC - 1) { if :: cs[m] == WAITS || cs[m] == HOLDS || reconcile[m] != 0 -> b = 0 :: else fi }
	for (m : 0 .. NK - 1) { if :: kk[m] != 0 -> b = 0 :: else fi }
	for (m : 0 .. NP - 1) { if :: dead[m] -> b = 0 :: else fi }
	remains = (holder != NONE || size > 0);
	for (m : 0 .. NP - 1) { if :: held[m] != NONE || offered[m] != NONE -> remains = 1 :: else fi }
	assert(!(b && remains));
	/* A waiter always has a reason to send a request, now or later. */
	forgotten = 0;
	for (m : 0 .. NC - 1) {
		if :: cs[m] == WAITS && !(reason[m] || inFlight[m] || enters[m] || queued[m] || to[HOME(m)] == m) -> forgotten = 1 :: else fi
	}
	assert(!forgotten)
}

inline tick() {
	printf("a tick\n");
	for (m : 0 .. NC - 1) {
#ifndef GRANT_BY_MESSAGE
		notified[m] = 0; /* a heartbeat does what a later message could do */
#endif
		if :: trust[m] > 0 -> trust[m]-- :: else fi;
		if :: dl[m] > 1 -> dl[m]-- :: else fi;
#ifdef OWN_CLOCK
		if :: silentFor[m] < TIMEOUT -> silentFor[m]++ :: else fi
#endif
	}
	if
	:: left > 0 ->
		left--;
		if
		:: left == 0 ->
			excused(holder); /* it was granted the lock, and no reply reached it in time */
			holder = NONE
		:: else
		fi
	:: else
	fi;
	for (m : 0 .. NK - 1) {
		if :: kk[m] != 0 && !copy[m] && ka[m] < LEASE -> ka[m]++ :: else fi
	}
	b = 0;
	for (m : 0 .. NC - 1) { if :: cs[m] == WAITS -> b = 1; beat[HOME(m)] = 1 :: else fi }
	for (m : 0 .. NC - 1) { if :: TRUSTS(m) -> b = 0 :: else fi }
	if :: b -> idle++ :: else -> idle = 0 fi;
	assert(idle <= IDLE_MOST) /* no living waiter is kept waiting by dead or forgotten ones */
}

#ifdef TRACE
/* alike: the processes are in the state that the history describes. */
inline alike() {
	c_code {
		int in = ~tr_those(now.lingers, 1, 255), waits = tr_those(now.cs, WAITS, in), sent = tr_those(now.sent, 1, waits);
		int sets[] = {
			waits, tr_those(now.cs, HOLDS, in), tr_those(now.inFlight, 1, waits), tr_those(now.reason, 1, waits), tr_those(now.queued, 1, waits),
			sent, tr_those(now.enters, 1, waits & ~sent), tr_named(now.held, NP), tr_named(now.offered, NP), tr_named(now.to, NP),
			tr_those(now.ph, HELD, 255) | tr_those(now.ph, OFFERED, 255), tr_those(now.ph, OVER, 255), tr_those(now.uncertain, 1, 255),
			tr_those(now.got, 1, 255), tr_those(now.traced, 1, 255), tr_those(now.taken, 1, 255), ~tr_those(now.reconcile, 0, 255)
		};
		now.ok = now.ok && tr_alike(now.which, now.at, sets);
	}
}
#endif

/* ---- events ---- */

#define EV_START(C) \
:: ON(1) cs[C] == AWAY && !dead[HOME(C)] && (C < PROCS || cs[(C + NC - PROCS) % NC] != AWAY); \
	SAY("caller %d comes", C) \
	b = 1; \
	for (m : 0 .. NC - 1) { if :: HOME(m) == HOME(C) && STANDS(m) -> b = 0 :: else fi } \
	cs[C] = WAITS; ph[C] = IN_FLIGHT; \
	RESTART(C) \
	if :: b -> reason[C] = 1 :: else -> enters[C] = 1 fi; \
	END

#define EV_REQUEST(C) \
:: ON(2) cs[C] == WAITS && reason[C] && !inFlight[C] && to[HOME(C)] != C && ROOM; \
	SAY("caller %d sends a request", C) \
	sending(C); \
	slot(); \
	kk[k] = REQ; kn[k] = C; kc[k] = 1; \
	EXPECT(k == tb) \
	reason[C] = 0; inFlight[C] = 1; enters[C] = 0; \
	END

/* A process adds its new waiters to the queue. */
#define EV_ENTER(P) \
:: ON(15) !dead[P] && ROOM && (false CALLERS(COMES, P)); \
	SAY("waiters of process %d join the queue", P) \
	slot(); \
	set = 0; y = NONE; \
	for (j : 0 .. NC - 1) { \
		if :: HOME(j) == P && COMING(j) -> set = set | (1 << j); sent[j] = 1; sending(j); if :: y == NONE -> y = j :: else fi :: else fi \
	} \
	kk[k] = ENT; kn[k] = y; ke[k] = set; \
	EXPECT(set == tb) \
	END

#ifdef TRACE
/* The heartbeat of a process. Here it is a command like others, and takes time. */
#define EV_BEAT(P) \
:: ON(16) true; \
	SAY("process %d sends a heartbeat", P) \
	heartbeat(P); \
	for (m : 0 .. NC - 1) { if :: cs[m] == OUT && IN(tb, m) -> set = set | (1 << m); y = m :: else fi } /* until the restarted one is in the queue */ \
	slot(); \
	kk[k] = KEP; kn[k] = y; ke[k] = set; \
	EXPECT(set == tb) \
	END
#else
/* The heartbeat of a process. */
#define EV_BEAT(P) \
:: ON(16) beat[P] && !dead[P]; \
	SAY("process %d sends a heartbeat", P) \
	heartbeat(P); \
	f1 = NONE; f2 = NONE; \
	if :: set != 0 -> keep(set, 0) :: else -> y = 0 fi; \
	for (m : 0 .. NC - 1) { if :: IN(y, m) -> reason[m] = 1 :: else fi } \
	END \
:: ON(16) beat[P] && !dead[P] && FAULT(1) && ROOM && (false CALLERS(KEPT, P)); \
	SAY("the connection of a heartbeat of process %d breaks", P) \
	heartbeat(P); \
	slot(); \
	kk[k] = KEP; kn[k] = y; ke[k] = set; copy[k] = 1; \
	faults++; \
	END
#endif

inline heartbeat(proc) {
	beat[proc] = 0; set = 0; y = NONE;
	for (m : 0 .. NC - 1) {
		if :: HOME(m) == proc && cs[m] == WAITS && queued[m] -> set = set | (1 << m); if :: y == NONE -> y = m :: else fi :: else fi
	}
}

/* A waiter takes the lock that is offered to it. */
#define EV_TAKE(C) \
:: ON(3) cs[C] == WAITS && to[HOME(C)] == C && !inFlight[C]; \
	SAY("caller %d takes the lock that is offered to it", C) \
	n = offered[HOME(C)]; \
	ph[n] = HELD; \
	if \
	:: n != C -> \
		served[n] = served[n] | (1 << C); \
		taken[C] = requested[C] == 1; \
		if :: LIVES(C) -> ph[C] = OVER :: else fi; \
		if :: uncertain[C] -> mustRelease(C) :: else fi \
	:: else \
	fi; \
	EXPECT(n == tb) \
	hold(C, n); \
	LINGERS(C) \
	END

/* Served owners leave the queue before the release, because the holder takes long. */
#define EV_REMOVE_SERVED(P) \
:: ON(18) !dead[P] && held[P] != NONE && served[held[P]] != 0 && LIVES(held[P]); \
	SAY("process %d removes served owners from the queue", P) \
	set = served[held[P]]; served[held[P]] = 0; \
	EXPECT(set == tb) \
	for (m : 0 .. NC - 1) { if :: IN(set, m) -> who = m :: else fi } \
	release(who, set, NONE); \
	END

#define EV_CANCEL(C) \
:: ON(4) cs[C] == WAITS && FAULT(2); \
	SAY("the wait of caller %d ends", C) \
	faults++; \
	for (m : 0 .. NK - 1) { if :: kk[m] == REQ && kn[m] == C -> kc[m] = 0 :: else fi } \
	if :: !(offered[HOME(C)] == C && to[HOME(C)] == C) -> fail(C) :: else fi; \
	cs[C] = OUT; quit(C); \
	END

#define EV_UNLOCK(C) \
:: ON(5) cs[C] == HOLDS && trust[hn[C]] > 0; \
	p = HOME(C); n = hn[C]; \
	b = 0; \
	for (m : 0 .. NK - 1) { if :: REQUEST(m, n) -> b = 1 :: else fi } \
	nextUp(); \
	if \
	:: y != NONE && !b && !uncertain[n] && offered[p] == NONE && held[p] == n && passed[n] < PASSES -> \
		SAY("caller %d hands the lock off", C) \
		hn[C] = NONE; cs[C] = OUT; \
		passed[n]++; ph[n] = OFFERED; offered[p] = n; to[p] = y; \
		EXPECT(tb == 254) \
	:: else -> unlock(C) \
	fi; \
	END \
:: ON(5) cs[C] == HOLDS && trust[hn[C]] > 0 && next1[HOME(C)] != NONE; /* it is no longer handed off */ \
	p = HOME(C); n = hn[C]; \
	unlock(C); \
	END

inline unlock(caller) {
	slot();
	if
	:: k < NK ->
		SAY("caller %d unlocks", caller)
		hn[caller] = NONE; cs[caller] = OUT;
		ph[n] = OVER; trust[n] = 0;
		y = NONE;
		for (m : 0 .. NC - 1) {
			if
			:: offered[p] == NONE && HOME(m) == p && cs[m] == WAITS && (queued[m] || sent[m]) && ph[m] == IN_FLIGHT && (y == NONE || SOONER(m, y)) -> y = m
			:: else
			fi
		}
		kk[k] = REL; kn[k] = n; ke[k] = served[n]; kh[k] = y;
		EXPECT(y == tb && served[n] == tc)
	:: else
	fi
}

#define EV_RUN(K) \
:: ON(6) kk[K] != 0 && kr[K] == 0; \
	SAY("command %d is executed", K) \
	serve(K); \
	EXPECT(kr[K] == tb && (kk[K] == ENT || kk[K] == KEP || kf[K] == tc && kg[K] == td) && (kk[K] != ENT && kk[K] != KEP || ky[K] == tc)) \
	if :: copy[K] -> drop(K) :: else fi; \
	END

#define EV_REPLY(K) \
:: ON(7) kk[K] == REQ && kr[K] != 0 && !copy[K]; \
	SAY("the reply to request %d arrives", K) \
	c = kn[K]; \
	if \
	:: kc[K] && kr[K] == GRANT -> inFlight[c] = 0; granted(K) \
	:: kc[K] && kr[K] == REFUSE -> \
		inFlight[c] = 0; queued[c] = 1; traced[c] = 1; \
		if :: placed[c] == 1 -> placed[c] = 2 :: else fi; \
		if :: ph[c] == OVER -> mustRelease(c) :: else fi \
	:: else -> unheard(c) \
	fi; \
	EXPECT((kc[K] && cs[c] == HOLDS -> c : NONE) == tb) \
	drop(K); \
	END \
:: ON(17) kk[K] == ENT && kr[K] != 0 && !copy[K]; \
	SAY("the reply to entry %d arrives", K) \
	for (j : 0 .. NC - 1) { if :: IN(ke[K], j) -> entered(j) :: else fi } \
	giveReason(ky[K]); \
	drop(K); \
	END \
:: ON(17) kk[K] == KEP && kr[K] != 0 && !copy[K]; \
	SAY("the reply to heartbeat %d arrives", K) \
	giveReason(ky[K]); \
	drop(K); \
	END \
:: ON(8) kk[K] == REL && kr[K] != 0 && !copy[K]; \
	SAY("the reply to release %d arrives", K) \
	n = kn[K]; \
	unhold(n); \
	if :: kh[K] != NONE -> grantedNext(K) :: else fi; \
	if :: uncertain[n] -> mustRelease(n) :: else fi; \
	drop(K); \
	END

/* giveReason gives the callers of the set a reason to send a request. */
inline giveReason(these) {
	for (j : 0 .. NC - 1) { if :: IN(these, j) && cs[j] == WAITS && LIVES(j) -> reason[j] = 1 :: else fi }
}

/* A connection breaks: the command was executed, or never is, or a duplicate of it is executed late. */
#define EV_BREAK(K) \
:: ON(9) kk[K] != 0 && !copy[K] && FAULT(1); \
	SAY("the connection of command %d breaks", K) \
	broke(K); \
	drop(K); \
	faults++; \
	EXPECT(tb == 0) \
	END \
:: ON(9) kk[K] != 0 && !copy[K] && kr[K] == 0 && FAULT(1); \
	SAY("the connection of command %d breaks, a duplicate is in flight", K) \
	broke(K); \
	copy[K] = 1; kc[K] = 0; ka[K] = 0; \
	faults++; \
	EXPECT(tb == 1) \
	END

/* A call stops waiting for its reply, and retries. */
#define EV_TIMEOUT(K) \
:: ON(10) kk[K] == REQ && kc[K] && FAULT(1); \
	SAY("the caller stops waiting for request %d", K) \
	kc[K] = 0; inFlight[kn[K]] = 0; reason[kn[K]] = 1; \
	faults++; \
	END

/* The wait of a caller ends at the moment when the lock is granted to it. */
#define EV_CROSS(K) \
:: ON(11) kk[K] == REQ && kc[K] && kr[K] == GRANT && FAULT(2); \
	SAY("the wait ends when the reply to request %d arrives", K) \
	faults++; \
	c = kn[K]; \
	drop(K); \
	uncertain[c] = 1; \
	if :: !(offered[HOME(c)] == c && to[HOME(c)] == c) -> fail(c) :: else fi; \
	cs[c] = OUT; quit(c); \
	END

#define EV_VANISH(K) \
:: ON(0) copy[K]; \
	SAY("duplicate %d never arrives", K) \
	drop(K); END

#define EV_LOSE(N) \
:: ON(12) (ph[N] == HELD || ph[N] == OFFERED) && (trust[N] == 0 || FAULT(2)); \
	SAY("owner %d loses the lock", N) \
	if :: trust[N] > 0 -> faults++ :: else fi; \
	lose(N); \
	END

/* An owner string with an unknown outcome is released again. */
#define EV_RECONCILE(N) \
:: ON(13) reconcile[N] != 0; \
	SAY("owner %d is reconciled", N) \
	set = served[N]; \
	release(N, set, NONE); \
	b = 0; \
	for (m : 0 .. NK - 1) { if :: ABOUT(m, N) && kk[m] != KEP && kr[m] == 0 -> b = 1 :: else fi } \
	reconcile[N] = (reconcile[N] == 2 && b -> 2 : 0); \
	END

/* The message that an owner is next arrives, or is lost. */
#define EV_MESSAGE(N) \
:: ON(19) notified[N]; \
	SAY("caller %d is notified that it is next", N) \
	notified[N] = 0; \
	HEARS(N) \
	END \
:: ON(0) notified[N]; notified[N] = 0; END

#ifdef GRANT_BY_MESSAGE
#define HEARS(N) \
	if \
	:: cs[N] == WAITS && queued[N] && !inFlight[N] && to[HOME(N)] == NONE -> \
		got[N] = 1; ph[N] = HELD; held[HOME(N)] = N; trust[N] = LEASE; hold(N, N) \
	:: else \
	fi;
#else
#define HEARS(N) if :: cs[N] == WAITS && (queued[N] || sent[N]) -> reason[N] = 1 :: else fi;
#endif

#define EV_CRASH(P) \
:: ON(0) !dead[P] && FAULT(4); \
	SAY("process %d is killed", P) \
	crash(P); \
	faults++; \
	END

/* ---- one event for each ---- */

#ifdef TRACE
#define CALLERS(e, a) e(0, a) e(1, a) e(2, a) e(3, a) e(4, a) e(5, a) e(6, a) e(7, a)
#define EACH(e) e(ta)
#define PROCESSES(e) e(ta)
#define SLOTS(e) e(ta)
#define ROOM 1
#else
#if NC == 2
#define CALLERS(e, a) e(0, a) e(1, a)
#define EACH(e) e(0) e(1)
#elif NC == 3
#define CALLERS(e, a) e(0, a) e(1, a) e(2, a)
#define EACH(e) e(0) e(1) e(2)
#elif NC == 4
#define CALLERS(e, a) e(0, a) e(1, a) e(2, a) e(3, a)
#define EACH(e) e(0) e(1) e(2) e(3)
#endif

#if NP == 1
#define PROCESSES(e) e(0)
#elif NP == 2
#define PROCESSES(e) e(0) e(1)
#elif NP == 3
#define PROCESSES(e) e(0) e(1) e(2)
#endif

#if NK == 2
#define COMMANDS(e, a) e(0, a) e(1, a)
#define SLOTS(e) e(0) e(1)
#define ROOM (kk[0] == 0 || kk[1] == 0)
#elif NK == 3
#define COMMANDS(e, a) e(0, a) e(1, a) e(2, a)
#define SLOTS(e) e(0) e(1) e(2)
#define ROOM (kk[0] == 0 || kk[1] == 0 || kk[2] == 0)
#endif

#endif

#define COMING(c) (cs[c] == WAITS && enters[c] && !sent[c])
#define COMES(c, p) || HOME(c) == p && COMING(c)
#define KEPT(c, p) || HOME(c) == p && cs[c] == WAITS && queued[c]

#ifndef TRACE
/* PROMPT: everything due happens before the clock ticks. */
#ifdef NO_LAG /* for a time bound: otherwise each command adds to the time, and so does a delayed duplicate from a dead waiter */
#define CMD_DUE(k) && kk[k] == 0
#else
#define CMD_DUE(k) && !(kk[k] != 0 && !copy[k] && ka[k] > 0)
#endif
#define CALL_DUE(c) && !(cs[c] == HOLDS && trust[hn[c]] == 0) && !(cs[c] == WAITS && reason[c] && !inFlight[c]) && !COMING(c) && !(to[HOME(c)] == c)
#define NAME_DUE(n) && !(reconcile[n] != 0 && (holder == n || dl[n] > 0)) && !(ph[n] == OFFERED && trust[n] == 0)
#define BEAT_DUE(p) && !beat[p]
#define PROMPT (true SLOTS(CMD_DUE) EACH(CALL_DUE) EACH(NAME_DUE) PROCESSES(BEAT_DUE))

#define CALL_OVER(c) && (cs[c] == OUT || cs[c] == DEAD) && reconcile[c] == 0
#define CMD_OVER(k) && kk[k] == 0
#define FINISHED (true EACH(CALL_OVER) SLOTS(CMD_OVER))
#endif

init {
#ifdef TRACE
	CHOOSE
#endif
	do
	EACH(EV_START)
	EACH(EV_REQUEST)
	PROCESSES(EV_ENTER)
	PROCESSES(EV_BEAT)
	EACH(EV_TAKE)
	PROCESSES(EV_REMOVE_SERVED)
	EACH(EV_CANCEL)
	EACH(EV_UNLOCK)
	SLOTS(EV_RUN)
	SLOTS(EV_REPLY)
	SLOTS(EV_BREAK)
	SLOTS(EV_TIMEOUT)
	SLOTS(EV_CROSS)
	EACH(EV_LOSE)
	EACH(EV_RECONCILE)
	EACH(EV_MESSAGE)
#ifdef TRACE
	:: ON(14) holder != NONE; excused(holder); holder = NONE; left = 0; END
	:: ON(20) lingers[ta]; lingers[ta] = 0; END
	:: ON(21) ph[ta] == OVER; mustRelease(ta); END
	:: c_expr { (now.at == tr_len[now.which]) } -> c_code { tr_ok[now.which] = 1; }; break
#else
	SLOTS(EV_VANISH)
	PROCESSES(EV_CRASH)
	:: d_step { PROMPT && !(FINISHED); tick(); END
	:: d_step { !(PROMPT) && delays < DELAYS; delays++; tick(); END
	:: FINISHED -> break
#endif
	od
}
