#!/bin/sh
# run.sh DIR NAME WANT FLAG …: runs one line of the table in check.sh. DIR is for output. The file DIR/failed
# marks a result that differs from the table. DIR/steps has the steps of the servers.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 name=$2 want=$3
shift 3
flags=$*

# property returns the property that the assertion in pan's message checks
property() {
	case $1 in
	*"errors: 0"*) echo holds ;;
	*"invalid end state"*) echo stuck ;;
	*cs\[*trust\[*) echo two ;;
	*token\[*begun*) echo tokens ;;
	*kg\[*passed\[*) echo later ;;
	*renewed*) echo touched ;;
	*"ph[n]==3"*) echo over ;;
	*ph\[holder\]*) echo freed ;;
	*awake\[*) echo stuck ;;
	*holder==255*|*held\[*) echo left ;;
	*idle*) echo timeout ;;
	*both*|*mixed*) echo two ;;
	*starves*) echo starves ;;
	*between*) echo between ;;
	*outlasts*) echo outlasts ;;
	*touched*) echo touched ;;
	*overtakes*) echo order ;;
	*remains*) echo left ;;
	*forgotten*) echo stuck ;;
	*freed*) echo freed ;;
	*untold*) echo untold ;;
	*) echo "? $1" ;;
	esac
}

case $name in
fair-*) model=$here/fair.pml ;;
rw-*) model=$here/rw.pml ;;
linger-*) model=$here/linger.pml ;;
*) model=$here/plain.pml ;;
esac
mkdir "$dir/$name"
cd "$dir/$name"
began=$(date +%s)
optimize=-O0 depth=100000
case $name in two-processes | late | fair-waits-end | fair-killed | fair-one-timeout | rw-shares | rw-three-writers) optimize=-O1 ;; esac # slower to compile, but pays for millions of states
[ "$want" = holds ] || depth=70                                                                          # a short history is easiest to read
steps=
case $want-$name in holds-linger-*) ;; holds-*) steps=-DSTEPS ;; esac # steps.pml
export STEPS="$dir/steps/$(basename "$model" .pml)-$name"
spin -a $flags $steps "$model" >spin.out 2>&1 || { cat spin.out; exit 1; }
cc $optimize -w -DSAFETY -DCOLLAPSE -DNOFAIR -o pan pan.c
timeout ${LIMIT:-600} ./pan -m$depth >out 2>&1 || true
if [ "$want" = holds ] && grep -q "max search depth too small\|out of memory" out; then cat out; exit 1; fi
found=$(property "$(grep -m1 "^pan:1:" out || grep -m1 -o "errors: [0-9]*" out || tail -1 out)")
states=$(awk '/states, stored/ { print $1; exit }' out)
printf '%-22s %-9s %-9s %12s %8s  %s\n' "$name" "$want" "$found" "$states" $(($(date +%s) - began)) "$flags"
if [ -n "$steps" ] && [ ! -s "$STEPS" ]; then
	echo "$name wrote no steps"
	touch "$dir/failed"
fi
if [ "$found" != "$want" ]; then
	[ ! -e "$(basename "$model").trail" ] || spin -k "$(basename "$model").trail" $flags $steps "$model" 2>/dev/null | grep -v ' = 0$\| = 255$\|^c_code\|^spin: [iw]\|^  [^ ]\|^      in random' | head -100
	touch "$dir/failed"
fi
rm -rf "$dir/$name"
