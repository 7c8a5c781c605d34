#!/bin/sh
# Runs the tests of the client, of what is built on it, and of pure code on every other Python that
# this machine has: pythonX.Y on the PATH or below ~/.pyenv, or those named: PYTHONS="python3.13 ...".
# If it has no Python 3.14, Debian's is unpacked into the cache folder of the tests.
# Each gets an environment of its own, with the locked requirements, in build/pythons.
set -eu
cd "$(dirname "$0")/.."

TESTS="tests/client tests/message tests/protocol tests/filter tests/outbox tests/otel tests/faststream \
tests/kombu tests/admin tests/core"

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

core_of() { "$1" -c 'from cometmq.speedups import CORE; print(CORE)'; }

on_this_machine() { # version
    for python in "$(command -v "python$1" || true)" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if [ "$(version_of "$python")" = "$1" ]; then
            printf '%s\n' "$python"
            return
        fi
    done
    return 1
}

own=$(version_of .venv/bin/python)

candidates() {
    if [ -n "${PYTHONS:-}" ]; then
        printf '%s\n' $PYTHONS
        return
    fi
    for version in 3.11 3.12 3.13 3.14; do
        [ "$version" != "$own" ] || continue
        on_this_machine "$version" && continue
        [ "$version" != 3.14 ] || .venv/bin/python -m scripts.debian_python "$version" || true
    done
}

tried= failed=
for python in $(candidates); do
    version=$(version_of "$python") || continue
    case " $own $tried " in *" $version "*) continue ;; esac
    tried="$tried $version"
    place=build/pythons/$version
    echo "---- Python $version"
    [ -x "$place/bin/python" ] || "$python" -m venv --without-pip "$place"
    .venv/bin/uv pip install --quiet --python "$place/bin/python" --require-hashes \
        --build-constraints requirements/build.lock -r requirements/all.lock
    .venv/bin/uv pip install --quiet --python "$place/bin/python" --no-deps --no-build-isolation \
        --editable .
    core=$(core_of "$place/bin/python")
    if [ "$core" != "$(core_of .venv/bin/python)" ]; then
        echo "pythons: on $version the core is $core, not that of .venv" >&2
        failed="$failed $version"
        continue
    fi
    # shellcheck disable=SC2086
    "$place/bin/python" -m pytest -q -n 2 -p no:cacheprovider -m "not deep" $TESTS ||
        failed="$failed $version"
done
if [ -z "$tried" ]; then
    echo "pythons: there is no other Python than $own: install one, or name it with PYTHONS=" >&2
    exit 1
fi
[ -z "$failed" ] || { echo "pythons: failed on$failed" >&2; exit 1; }
echo "pythons: passed on$tried"
