#!/bin/sh
# Runs a compiler, and keeps what ptxas says of each kernel's registers, stack and spills beside the object that it
# writes, as <object>.ptxas.txt; all else is passed on.
object=
previous=
for word in "$@"; do
    [ "$previous" = -o ] && object=$word
    previous=$word
done
output=$(mktemp) || exit 1
"$@" >"$output" 2>&1
status=$?
report='^ptxas info|^    [0-9]+ bytes stack frame|^    Function properties'
grep -E "$report" "$output" >"$object.ptxas.txt"
grep -vE "$report" "$output" >&2
rm -f "$output"
exit $status
