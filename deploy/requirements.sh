#!/bin/sh
# Names in one line what this machine lacks to build Headrace. Usage: requirements.sh PYTHON
python=$1
lacking=""
command -v "$python" >/dev/null || { echo "headrace: $python is missing: install Python 3.11 or later (Debian: python3)" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || lacking="$lacking python>=3.11($("$python" --version))"
"$python" -c 'import venv, ensurepip' 2>/dev/null || lacking="$lacking python3-venv"
command -v g++ >/dev/null || lacking="$lacking g++"
[ -z "$lacking" ] || { echo "headrace: missing:$lacking (Debian: apt-get install python3-venv g++)" >&2; exit 1; }
