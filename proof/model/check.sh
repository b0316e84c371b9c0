#!/bin/sh
# Checks the models of the locks exhaustively within small bounds, and shows that each mutant of them
# is caught. It needs spin and a C compiler. "check.sh NAME …" runs only the named lines.
#
# The bounds: NP processes, NC callers, CALLS calls, FAULTS faults, DELAYS ticks in which something
# that is due does not happen. TIMELESS runs have no clock.
#
# The columns of the table below: name, expected result, and the bounds or the mutation. Names that
# begin with fair- are runs of fair.pml, rw- of rw.pml, linger- of linger.pml; all others of
# plain.pml.
#   holds      every state was visited without a violation
#   <property> the run ends with a violation of this property
set -eu
cd "$(dirname "$0")"
here=$PWD
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

runs() {
	cat <<'END'
two-processes   holds -DNC=3 -DNP=2 -DCALLS=3 -DFAULTS=1 -DDELAYS=0
one-process     holds -DNC=3 -DNP=1 -DCALLS=3 -DFAULTS=1 -DDELAYS=0 -DPASSES=2 -DLEASE=2 -DOFFER=1
renewals        holds -DNC=2 -DNP=2 -DCALLS=2 -DFAULTS=1 -DDELAYS=0 -DLEASE=3 -DOFFER=1 -DRENEWALS
renewals-passed holds -DNC=2 -DNP=1 -DCALLS=2 -DFAULTS=1 -DDELAYS=0 -DLEASE=3 -DOFFER=1 -DRENEWALS
late            holds -DNC=2 -DNP=2 -DCALLS=2 -DFAULTS=0 -DDELAYS=2 -DLEASE=2 -DOFFER=1
three-processes holds -DNC=3 -DNP=3 -DCALLS=3 -DFAULTS=1 -DTIMELESS
two-faults      holds -DNC=2 -DNP=2 -DCALLS=2 -DFAULTS=2 -DTIMELESS

until-from-reply     two     -DUNTIL_FROM_REPLY    -DNC=2 -DNP=2 -DCALLS=2 -DDELAYS=1 -DLEASE=2 -DOFFER=1
offer-from-reply     two     -DOFFER_FROM_REPLY    -DNC=3 -DNP=2 -DCALLS=3 -DDELAYS=1
owner-twice          later   -DOWNER_TWICE         -DNC=2 -DNP=2 -DCALLS=3 -DLEASE=2 -DOFFER=1
grant-by-message     two     -DGRANT_BY_MESSAGE    -DNC=2 -DNP=2 -DCALLS=3 -DFAULTS=0 -DDELAYS=1 -DLEASE=2 -DOFFER=1
no-number            two     -DNO_NUMBER           -DNC=2 -DNP=2 -DCALLS=2 -DFAULTS=1 -DDELAYS=1 -DLEASE=2 -DOFFER=1
renew-after-release  over    -DRENEW_AFTER_RELEASE -DNC=2 -DNP=2 -DCALLS=2 -DRENEWALS -DLEASE=2 -DOFFER=1
renewal-from-reply   two     -DRENEWAL_FROM_REPLY  -DNC=2 -DNP=2 -DCALLS=2 -DRENEWALS -DDELAYS=0 -DFAULTS=0 -DLEASE=3 -DOFFER=1
renews-back          left    -DRENEWS_BACK         -DNC=2 -DNP=2 -DCALLS=2 -DRENEWALS -DLEASE=2 -DOFFER=1
renew-anybodys       touched -DRENEW_ANY           -DNC=2 -DNP=2 -DCALLS=2 -DRENEWALS -DDELAYS=1 -DLEASE=2 -DOFFER=1
release-anybodys     freed   -DRELEASE_ANY         -DNC=2 -DNP=2 -DCALLS=2 -DLEASE=2 -DOFFER=1
next-owners-token    tokens  -DNEXT_OWNERS_TOKEN   -DNC=2 -DNP=1 -DCALLS=2
first-token          tokens  -DFIRST_TOKEN         -DNC=3 -DNP=2 -DCALLS=3 -DDELAYS=0
pass-while-uncertain later   -DPASS_UNCERTAIN      -DNC=2 -DNP=1 -DCALLS=2 -DTIMELESS
nobody-is-woken      stuck   -DNO_ALARM            -DNO_UNHOLD -DNC=2 -DNP=1 -DCALLS=2 -DTIMELESS
no-reconciling       left    -DNO_RECONCILING      -DNC=2 -DNP=2 -DCALLS=2 -DTIMELESS
reconciles-once      left    -DRECONCILE_ONCE      -DNC=2 -DNP=2 -DCALLS=2 -DTIMELESS
next-owner-gone      left    -DGRANTED_NEXT_OVER   -DNC=2 -DNP=1 -DCALLS=2 -DTIMELESS
refused-when-over    left    -DREFUSED_WHEN_OVER   -DNC=3 -DNP=2 -DCALLS=3 -DDELAYS=0

fair-three-callers holds -DNC=3 -DFAULTS=0
fair-waits-end     holds -DNC=3 -DFAULTS=1 -DKINDS=2
fair-killed        holds -DNC=3 -DFAULTS=1 -DKINDS=4
fair-two-faults    holds -DNC=2 -DFAULTS=2
fair-late          holds -DNC=2 -DFAULTS=1 -DDELAYS=1
fair-one-timeout   holds -DNC=4 -DFAULTS=1 -DKINDS=4 -DNO_LAG -DIDLE_MOST=3

fair-until-from-reply two     -DUNTIL_FROM_REPLY -DNC=2 -DFAULTS=0 -DDELAYS=1
fair-grant-by-message two     -DGRANT_BY_MESSAGE -DNC=3 -DFAULTS=0 -DDELAYS=2
fair-barges           order   -DBARGES           -DNC=3 -DFAULTS=0
fair-any-next         order   -DANY_NEXT_OWNER   -DNC=3 -DFAULTS=0
fair-own-clock        order   -DOWN_CLOCK        -DNC=3 -DFAULTS=0
fair-passes-to-any    left    -DPASSES_TO_ANY    -DNC=3 -DFAULTS=0
fair-served-stay      left    -DSERVED_STAY      -DNC=3 -DFAULTS=0
fair-enters-twice     left    -DENTERS_TWICE     -DNC=2 -DFAULTS=1 -DKINDS=1
fair-heartbeat-enters left    -DHEARTBEAT_ENTERS -DNC=2 -DFAULTS=2 -DKINDS=3
fair-no-reconciling   left    -DNO_RECONCILING   -DNC=2 -DFAULTS=1
fair-deadlines-add-up timeout -DDEADLINES_ADD_UP -DNC=4 -DFAULTS=1 -DKINDS=4 -DNO_LAG -DIDLE_MOST=3
fair-no-turn          timeout -DNO_TURN          -DNC=3 -DFAULTS=0 -DNO_LAG -DIDLE_MOST=3

rw-three-callers holds -DNC=3 -DFAULTS=0 -DWRITERS=2 -DPASS_MOST=0
rw-shares        holds -DNC=3 -DFAULTS=1 -DWRITERS=1 -DSHARES
rw-uncertain       holds -DNC=3 -DFAULTS=1 -DWRITERS=5
rw-two-writers   holds -DNC=3 -DFAULTS=0 -DWRITERS=3
rw-three-writers holds -DNC=4 -DFAULTS=0 -DWRITERS=7 -DPASS_MOST=1
rw-downgrade     holds -DNC=3 -DFAULTS=1 -DWRITERS=5 -DDOWNGRADES -DRENEWALS=1
rw-down-shares   holds -DNC=3 -DFAULTS=1 -DWRITERS=1 -DDOWNGRADES -DSHARES
rw-down-late     holds -DNC=3 -DFAULTS=0 -DDELAYS=1 -DWRITERS=5 -DDOWNGRADES -DRENEWALS=1
rw-late          holds -DNC=2 -DFAULTS=1 -DDELAYS=1 -DRENEWALS=1

rw-until-from-reply two      -DUNTIL_FROM_REPLY   -DNC=2 -DFAULTS=0 -DDELAYS=1 -DWRITERS=3
rw-writer-barges    two      -DWRITER_BARGES      -DNC=2 -DFAULTS=0
rw-joins-lapsed     two      -DJOINS_LAPSED       -DNC=3 -DFAULTS=0 -DDELAYS=1 -DWRITERS=1 -DSHARES
rw-downgrade-frees  two      -DDOWNGRADE_FREES    -DNC=3 -DFAULTS=0 -DWRITERS=5 -DDOWNGRADES
rw-downgrade-late   between  -DDOWNGRADES_LATE=1  -DNC=3 -DFAULTS=0 -DWRITERS=5 -DDOWNGRADES
rw-trusts-writing   two      -DTRUSTS_THE_WRITING -DNC=3 -DFAULTS=0 -DWRITERS=5 -DDOWNGRADES -DRENEWALS=1
rw-opens-beside     two      -DOPENS_BESIDE=1     -DNC=3 -DFAULTS=0 -DWRITERS=1 -DDOWNGRADES -DSHARES
rw-joins-reserved   left     -DJOINS_RESERVED     -DNC=3 -DFAULTS=0 -DWRITERS=1 -DSHARES
rw-shares-uncertain outlasts -DSHARES_UNCERTAIN   -DNC=3 -DFAULTS=1 -DWRITERS=1 -DSHARES
rw-asks-once        outlasts -DASKS_ONCE          -DNC=3 -DFAULTS=1 -DWRITERS=5
rw-release-anybodys touched  -DRELEASE_ANY        -DNC=2 -DFAULTS=1 -DWRITERS=3
rw-no-intent        starves  -DNO_INTENT          -DNC=3 -DFAULTS=0 -DWRITERS=2 -DPASS_MOST=0
rw-ends-silently    starves  -DENDS_SILENTLY      -DNC=4 -DFAULTS=0 -DWRITERS=7 -DPASS_MOST=1
rw-renews-back      left     -DRENEWS_BACK        -DNC=2 -DFAULTS=1 -DRENEWALS=1
rw-reconciles-once  left     -DRECONCILE_ONCE     -DNC=2 -DFAULTS=1

linger-two-processes   holds -DNP=2 -DCALLS=3 -DTAKES=1 -DFAULTS=1
linger-three-processes holds -DNP=3 -DCALLS=3 -DTAKES=1 -DFAULTS=0

linger-keeps-anyway untold -DKEEPS_ANYWAY     -DNP=2 -DCALLS=3 -DTAKES=1 -DFAULTS=1
linger-no-message   untold -DIGNORES_MESSAGES -DNP=2 -DCALLS=3 -DTAKES=1 -DFAULTS=1
linger-trusts-past  untold -DTRUSTS_THE_PAST  -DNP=2 -DCALLS=3 -DTAKES=1 -DFAULTS=1
linger-no-pace      tokens -DNO_PACE          -DNP=2 -DCALLS=3 -DTAKES=1 -DFAULTS=1
linger-takes-lost   two    -DTAKES_LOST       -DNP=2 -DCALLS=3 -DTAKES=1 -DFAULTS=1
END
}

mkdir "$dir/steps"
printf '%-22s %-9s %-9s %12s %8s  %s\n' run wanted found states seconds bounds
runs | awk -v names=" $* " 'NF && (names == "  " || index(names, " " $1 " "))' |
	xargs -r -P "$(nproc)" -L 1 sh "$here/run.sh" "$dir"
[ ! -e "$dir/failed" ]

# Do the scripts take the same steps as the servers of the models?
if [ -n "$(ls "$dir/steps")" ]; then
	(cd "$here/../.." && LEASEHOLD_REQUIRE_REDIS=1 LEASEHOLD_STEPS="$dir/steps" go test -count=1 -v -run '^TestSteps$' ./luascripts) >"$dir/steps.out" || {
		cat "$dir/steps.out"
		exit 1
	}
	sed -n 's/.*steps_test.go:[0-9]*: \(.*FOLLOWED.*\)/steps of \1/p' "$dir/steps.out"
fi

# Can the models follow the behavior of the library's real state machine?
case " $* " in "  " | *" histories "*) ;; *) exit 0 ;; esac
mkdir "$dir/histories"
cd "$dir/histories"
export LEASEHOLD_SEED="${LEASEHOLD_SEED:-$(date +%s)}" # the base seed of the histories
echo "histories: LEASEHOLD_SEED=$LEASEHOLD_SEED"
(cd "$here/../.." && LEASEHOLD_TRACES="$dir/histories" go test -count=1 -run '^TestTraces$' ./internal/lockstate ./watchdog) >go.out || {
	cat go.out
	exit 1
}
# follow MODEL "FILE …" FLAG …
follow() {
	model=$1 files=$2
	shift 2
	spin -a -DTRACE "$@" "$here/$model.pml" >spin.out || { cat spin.out; exit 1; }
	cc -O0 -w -DSAFETY -DNOFAIR -DNOBOUNDCHECK -DVECTORSZ=2048 -o pan pan.c
	for file in $files; do
		TRACE=$file ./pan -A -E -m100000 >out
		printf 'histories of %s: ' "$file"
		grep 'REJECTED\|FOLLOWED' out || { cat out; exit 1; }
		! grep -q REJECTED out || touch "$dir/failed"
	done
}
follow plain "plain leases" -DNP=3 -DNC=6 -DNN=16 -DNK=32 -DPASSES=64 -DLEASE=24
follow fair fair -DNP=3 -DNC=8 -DNK=32 -DPASSES=64
follow rw rw -DNP=3 -DNC=8 -DNK=32
[ ! -e "$dir/failed" ]
