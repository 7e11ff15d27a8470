#!/usr/bin/env bash
# Runs the parts of the test suite one after the other and says what each took. Usage: timed_parts.sh PART…
set -uo pipefail
cd "$(dirname "$0")/.."
failed=""
report=""
for part in "$@"; do
    [ -d "tests/$part" ] || continue
    echo "== $part"
    begin=$SECONDS
    .venv/bin/pytest "tests/$part" || failed="$failed $part"
    report="$report$(printf '%-12s %4d s' "$part" $((SECONDS - begin)))\n"
done
printf '\ntime by part\n%b' "$report"
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
