#!/bin/sh
# Builds the repository's virtual environment, or says in one line why it cannot.
#
#   final/setup.sh            the broker and its command line, editable
#   final/setup.sh dev,docs   the same with these extras of pyproject.toml
#
# VENV    where the environment stands; relative to the repository; default .venv
# PYTHON  the interpreter to build it with; default the first on PATH that is new enough
# NO_SETUP=1 trusts an environment that was made by other means
#
# When nothing changed this is a no-op of a few milliseconds. What "nothing" means is written in a stamp inside the
# environment: the checksum of pyproject.toml, the place of the repository (an editable install points at it) and the
# extras. The stamp is written last, so whatever an interrupted run leaves behind is finished by the next one.
set -u
LC_ALL=C
export LC_ALL

PYTHON_MIN="3.11"
EXTRAS=${1:-}
[ -n "${NO_SETUP:-}" ] && exit 0

say() { printf 'setup: %s\n' "$1"; }
fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }

root=$(cd -P "$(dirname "$0")/.." && pwd -P) || exit 1
cd "$root" || exit 1
venv=${VENV:-.venv}
shown=$venv
case $venv in /*) ;; *) venv=$root/$venv ;; esac
stamp=$venv/.minibroker-setup
facts="$(cksum < pyproject.toml) $root"

# True when the stamp holds the same facts and at least the extras that are wanted now.
is_up_to_date() {
    [ -x "$venv/bin/python" ] && [ -f "$stamp" ] || return 1
    { IFS= read -r stamped_facts && IFS= read -r stamped_extras; } < "$stamp" || return 1
    [ "$stamped_facts" = "$facts" ] || return 1
    for extra in $(printf '%s' "$EXTRAS" | tr ',' ' '); do
        case ",$stamped_extras," in *",$extra,"*) ;; *) return 1 ;; esac
    done
}

is_up_to_date && exit 0

# One run at a time: `make -j` may start two. A lock whose owner is gone is taken over.
lock=$venv.lock
log=
release() { [ -n "$log" ] && rm -f "$log"; rm -rf "$lock"; }
mkdir -p "$(dirname "$venv")" 2>/dev/null
until mkdir "$lock" 2>/dev/null; do
    if [ ! -d "$lock" ]; then
        # Another run may have removed its lock just now.
        misses=$((${misses:-0} + 1))
        [ "$misses" -lt 10 ] || fail "cannot write in $(dirname "$venv"): make it writable, or set VENV=/another/folder"
        continue
    fi
    owner=$(cat "$lock/pid" 2>/dev/null)
    tries=$((${tries:-0} + 1))
    if [ -n "$owner" ] && kill -0 "$owner" 2>/dev/null; then
        [ "$tries" -gt 1 ] || say "waiting for another set-up of $shown (process $owner)"
        sleep 0.2
    elif [ -z "$owner" ] && [ "$tries" -lt 10 ]; then
        sleep 0.2 # its owner is about to write its number
    else
        rm -rf "$lock"
    fi
done
printf '%s\n' "$$" > "$lock/pid"
trap release EXIT
trap 'printf "setup: interrupted; the next run finishes the work\n" >&2; exit 130' INT TERM HUP
is_up_to_date && exit 0 # the run we waited for did the work

version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=
found=
if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.14 python3.13 python3.12 python3.11; fi
for candidate in "$@"; do
    version=$(version_of "$candidate") || continue
    if is_new_enough "$candidate"; then python=$candidate; break; fi
    found="${found:+$found, }$candidate is $version"
done
[ -n "$python" ] || fail "minibroker needs Python $PYTHON_MIN or newer, ${found:-${PYTHON:-python3} does not run here}: install one, or name it: make setup PYTHON=/path/to/python$PYTHON_MIN"

log=$(mktemp "${TMPDIR:-/tmp}/minibroker-setup.XXXXXX") || fail "no space or no permission for a log file in ${TMPDIR:-/tmp}: set TMPDIR=/another/folder"
started=$(date +%s)

free_mb() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { printf "%d", $4 / 1024 }'; }

# Turns the log of a failed step into one line. The log stays where it is when the line alone may not be enough.
explain() {
    seconds=$(($(date +%s) - started))
    near=$venv
    [ -d "$near" ] || near=$(dirname "$venv")
    free=$(free_mb "$near")
    # `python -m venv` swallows the reason of its own failure: then the free space itself tells.
    if [ "${free:-9}" -lt 1 ] || grep -qiE 'no space left|os error 28|disk quota exceeded|not enough (disk )?space' "$log"; then
        fail "the disk is full: $free MB free at $shown, $(free_mb "${TMPDIR:-/tmp}") MB at ${TMPDIR:-/tmp}, about $needed_mb MB needed: free some, or set VENV and TMPDIR to folders on another disk"
    fi
    if grep -qiE 'ensurepip is not|no module named (venv|ensurepip)' "$log"; then
        fail "$python ($version) comes without venv: install it (Debian and Ubuntu: apt install python3-venv), or install uv"
    fi
    if grep -qiE 'newconnectionerror|connecttimeouterror|failed to establish|name resolution|connection (refused|reset|timed out|aborted|broken)|network is unreachable|read timed out|readtimeout|max retries|error sending request|failed to fetch|dns error|connect error|proxyerror|sslerror|from versions: none' "$log"; then
        fail "no answer from the package index after $seconds s ($(reason)): check the network, or name a mirror in ${index_variable}, then run it again"
    fi
    kept=$log
    log=
    fail "$1 failed after $seconds s: $(tail -n 1 "$kept"); the whole log is $kept"
}

# The most telling few words of a network failure.
reason() {
    words='temporary failure in name resolution|name or service not known|connection refused|connection reset|network is unreachable|timed out|dns error|certificate verify failed|proxy'
    grep -oiE "$words" "$log" | tail -n 1 | tr '[:upper:]' '[:lower:]' | grep . || printf 'no connection'
}

# An environment can be kept when it runs, is new enough, and was made in this very place (its scripts name the place).
is_usable() {
    [ -f "$venv/pyvenv.cfg" ] && [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python" &&
        grep -qF "$venv" "$venv/bin/activate" 2>/dev/null && has_installer
}

if uv --version > /dev/null 2>&1; then
    index_variable=UV_INDEX_URL
    has_installer() { :; }
    create() { uv venv --quiet --allow-existing --python "$(command -v "$python")" "$venv"; }
    install() { uv pip install --quiet --python "$venv/bin/python" --editable "$1"; }
else
    index_variable=PIP_INDEX_URL
    has_installer() { "$venv/bin/python" -m pip --version > /dev/null 2>&1; }
    create() { "$python" -m venv "$venv"; }
    install() { "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --editable "$1"; }
fi

case $EXTRAS in "") needed_mb=60 what="minibroker" ;; *spark*) needed_mb=1500 what="minibroker with $EXTRAS" ;; *) needed_mb=400 what="minibroker with $EXTRAS" ;; esac
say "installing $what into $shown"
rm -f "$stamp" 2>/dev/null
if ! is_usable; then
    # Only an environment, or nothing, is ever cleared: never somebody's folder that happens to bear the name.
    if [ -d "$venv" ] && [ -n "$(ls -A "$venv")" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ ! -e "$venv/bin/python" ]; then
        fail "$shown is there and is not a virtual environment: move it away, or set VENV=/another/folder"
    fi
    rm -rf "$venv"/* "$venv"/.[!.]* 2>/dev/null
    create > "$log" 2>&1 || explain "creating the environment"
fi
install ".${EXTRAS:+[$EXTRAS]}" > "$log" 2>&1 || explain "installing"
printf '%s\n%s\n' "$facts" "$EXTRAS" > "$stamp" 2> "$log" || explain "writing the stamp"
say "ready after $(($(date +%s) - started)) s, with Python $("$venv/bin/python" -c 'import platform; print(platform.python_version())')"
