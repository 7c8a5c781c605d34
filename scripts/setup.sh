#!/bin/sh
# Prepares .venv: checks the machine's requirements (Python 3.11+, Java 17+), installs the locked
# packages and CometMQ itself. `make setup` calls it and records that it has run.
#
# Environment: PYTHON          the interpreter to use instead of the first suitable one found
#              COMETMQ_VENV    where the environment goes (default .venv)
set -eu
cd "$(dirname "$0")/.."

VENV=${COMETMQ_VENV:-.venv}
missing=

say() { printf '%s\n' "$*" >&2; }

need() { # what is missing, how to get it
    say "setup: missing: $1"
    say "       get it:  $2"
    missing=yes
}

is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13; do
        if command -v "$candidate" >/dev/null 2>&1 && is_python_311 "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

java_major() { # 17 for 'openjdk version "17.0.15"', 8 for '"1.8.0_402"', nothing without Java
    java -version 2>&1 |
        sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1
}

check_machine() {
    if ! python=$(find_python); then
        need "Python 3.11 or later" "apt-get install -y python3 python3-venv"
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        need "the venv module of $python" "apt-get install -y python3-venv"
    fi
    java=$(java_major || true)
    if [ -z "$java" ]; then
        need "Java 17 or later (Spark and the Java peers of the tests run on it)" "apt-get install -y openjdk-17-jre-headless"
    elif [ "$java" -lt 17 ]; then
        need "Java 17 or later (found Java $java)" "apt-get install -y openjdk-17-jre-headless"
    fi
    if [ -n "$missing" ]; then
        say "setup: stopped; install what is missing and run the same command again."
        exit 1
    fi
    if ! command -v mvn >/dev/null 2>&1; then
        say "setup: note: no Maven; the tests against real Java peers will not run"
        say "       get it:  apt-get install -y maven openjdk-17-jdk-headless (optional)"
    fi
}

# uv ignores pip's configuration; a machine that needs it to reach packages must still work.
follow_pip_settings() {
    index=$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)
    index=${PIP_INDEX_URL:-$index}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}" ]; then
        export UV_DEFAULT_INDEX="$index"
    fi
    if [ -n "${PIP_CERT:-}" ] && [ -z "${SSL_CERT_FILE:-}" ]; then
        export SSL_CERT_FILE="$PIP_CERT"
    fi
}

install() {
    if ! is_python_311 "$VENV/bin/python"; then
        say "setup: making $VENV with $python"
        "$python" -m venv "$VENV"
    fi
    if [ ! -x "$VENV/bin/uv" ]; then
        "$VENV/bin/python" -m pip --version >/dev/null 2>&1 ||
            "$VENV/bin/python" -m ensurepip >/dev/null
        "$VENV/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
            --root-user-action=ignore --require-hashes --no-deps -r requirements/bootstrap.lock
    fi
    follow_pip_settings
    say "setup: installing the locked requirements (Spark is large: the first time takes minutes)"
    uv_pip install --quiet --require-hashes --build-constraints requirements/build.lock \
        -r requirements/all.lock
    uv_pip install --quiet --no-deps --no-build-isolation --editable .
    # Each installation of Spark leaves a gigabyte in uv's cache that later ones do not reuse.
    "$VENV/bin/uv" cache prune --quiet || say "setup: note: uv's cache was not tidied up"
    # uv compiles no bytecode; if Python may not write it either, each start would compile again.
    "$VENV/bin/python" -m compileall -q -j 0 src "$VENV"/lib/python3.*/site-packages ||
        say "setup: note: some modules have no bytecode; programs that use them start slowly"
    say "setup: done; the command is $VENV/bin/cometmq"
}

uv_pip() {
    command=$1
    shift
    "$VENV/bin/uv" pip "$command" --python "$VENV/bin/python" "$@"
}

check_machine
install
