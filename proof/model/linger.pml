/*
 * A lock that lingers (lock.WithLinger): a process keeps it for its next caller until another process wants it.
 *
 * A process is one caller here, and a command is executed exactly once: lost and repeated commands are in the models of
 * the locks. Each step of the model is one event.
 */

#ifndef NP
#define NP 3      /* processes */
#endif
#ifndef CALLS
#define CALLS 4   /* calls that send requests */
#endif
#ifndef TAKES
#define TAKES 2   /* calls that take a kept lock */
#endif
#ifndef FAULTS
#define FAULTS 1  /* maximum number of faults in a history */
#endif
#define NONE 255

/* What a process does. */
#define AWAY  0
#define REQUESTS  1   /* a request is in flight */
#define WAITS 2   /* its latest request was refused */
#define USES  3   /* a caller has the lock */
#define KEEPS 4   /* the process keeps it, and no caller has it */
#define FREES 5   /* its release is in flight */

byte st[NP];
byte reply[NP];         /* REQUESTS: 0 before the request is executed, 1 granted, 2 refused */
bit  clean[NP];         /* it was subscribed when it sent the request, and has noticed nothing since then */
bit  may[NP];           /* the grant may linger */
bit  trust[NP];         /* its lease is valid */
byte grantNumber[NP];        /* the number of its latest grant */
byte token[NP];
byte by[NP];            /* WAITS: the process that had the lock */
byte during[NP];        /* WAITS: the grantNumber of that process */

bit  listens[NP];       /* the server has its subscription */
bit  confirmed[NP];     /* the process has the confirmation, and has noticed no interruption */
bit  message[NP];       /* another process wants the lock: a message is in flight */

byte holder = NONE;
byte clock;             /* of the server: the token of its next grant is larger */
byte begun;             /* the largest token of a caller that had the lock */
byte calls, takes, faults, grants;

bit  lost;              /* a message was lost although the connection works */

hidden byte p, q;
hidden byte both, untold;

/* notice: another process may want the lock of process n */
inline notice(n) {
	clean[n] = 0;
	if
	:: st[n] == KEEPS -> st[n] = FREES
	:: else
	fi
}

/* begin: a caller of process n holds the lock now */
inline begin(n) {
	st[n] = USES;
	assert(!trust[n] || token[n] > begun);
	if
	:: trust[n] -> begun = token[n]
	:: else
	fi
}

inline check() {
	for (p : 0 .. NP - 1) {
		both = (st[p] == USES && trust[p] && holder != p);
		assert(!both);
		for (q : 0 .. NP - 1) {
			untold = (!lost && confirmed[p] && listens[p] && st[q] == WAITS && by[q] == p && during[q] == grantNumber[p] && holder == p && st[p] == KEEPS && !message[p]);
			assert(!untold);
		}
	}
	both = 0; untold = 0; p = 0; q = 0
}

active [NP] proctype process() {
	byte n = _pid;
end:	do
	/* the call and its request */
	:: d_step { st[n] == AWAY && calls < CALLS ->
		calls++; st[n] = REQUESTS; reply[n] = 0;
		clean[n] = confirmed[n];
		check() }
	:: d_step { st[n] == REQUESTS && reply[n] == 0 && holder == NONE ->
		holder = n; grants++; clock++; reply[n] = 1; grantNumber[n] = grants; token[n] = clock; check() }
	:: d_step { st[n] == REQUESTS && reply[n] == 0 && holder != NONE ->
		reply[n] = 2; by[n] = holder; during[n] = grantNumber[holder];
		if
		:: listens[holder] -> message[holder] = 1
		:: else
		fi;
		check() }
	:: d_step { st[n] == REQUESTS && reply[n] == 1 ->
		trust[n] = (holder == n && grantNumber[n] != 0);
		may[n] = clean[n];
		begin(n); check() }
	:: d_step { st[n] == REQUESTS && reply[n] == 2 -> st[n] = WAITS; check() }
	:: d_step { st[n] == WAITS && (holder != by[n] || during[n] != grantNumber[by[n]] || faults > 0) ->
		st[n] = REQUESTS; reply[n] = 0; clean[n] = 0; check() }

	/* the lock in the process */
	:: d_step { st[n] == USES ->
		if
#ifdef KEEPS_ANYWAY
		:: may[n] && trust[n] -> st[n] = KEEPS
#else
		:: may[n] && trust[n] && clean[n] && confirmed[n] -> st[n] = KEEPS
#endif
		:: else -> st[n] = FREES
		fi;
		check() }
#ifdef TAKES_LOST
	:: d_step { st[n] == KEEPS && takes < TAKES && token[n] < clock ->
#else
	:: d_step { st[n] == KEEPS && trust[n] && takes < TAKES && token[n] < clock ->
#endif
		takes++; token[n]++; trust[n] = 1; begin(n); check() }
#ifdef NO_PACE
	:: d_step { st[n] == KEEPS && trust[n] && takes < TAKES ->
		takes++; token[n]++; begin(n); check() }
#endif
	:: d_step { st[n] == KEEPS -> st[n] = FREES; check() } /* the duration of the option has passed */
	:: d_step { st[n] == FREES ->
		if
		:: holder == n -> holder = NONE
		:: else
		fi;
		st[n] = AWAY; trust[n] = 0; may[n] = 0; check() }

	/* messages */
	:: d_step { message[n] ->
		message[n] = 0;
#ifndef IGNORES_MESSAGES
		notice(n);
#endif
		check() }
	:: d_step { !listens[n] && !confirmed[n] -> listens[n] = 1; check() }
	:: d_step { listens[n] && !confirmed[n] ->
		confirmed[n] = 1;
#ifndef TRUSTS_THE_PAST
		notice(n);
#endif
		check() }
	:: d_step { listens[n] && confirmed[n] && faults < FAULTS -> faults++; listens[n] = 0; message[n] = 0; check() } /* the connection breaks */
	:: d_step { !listens[n] && confirmed[n] -> confirmed[n] = 0; check() }
	:: d_step { message[n] && faults < FAULTS -> faults++; message[n] = 0; lost = 1; check() }

	/* the lease */
	:: d_step { trust[n] && faults < FAULTS -> /* it ends for the process first */
		faults++; trust[n] = 0;
#ifndef TAKES_LOST
		if
		:: st[n] == KEEPS -> st[n] = FREES
		:: else
		fi;
#endif
		check() }
	:: d_step { holder == n && !trust[n] && st[n] != REQUESTS && faults > 0 -> holder = NONE; check() }

	:: d_step { clock < 2 * CALLS -> clock++; check() }
	od
}
