#!/bin/sh
# Renews requirements/*.lock: every package with its version and hashes, but no address, so that the
# files work with any package index. UPGRADE=1 takes newer versions than those in the files.
set -eu
cd "$(dirname "$0")/.."

compile() { # output, inputs...
    output=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
        --output-file "requirements/$output.lock" "$@" >/dev/null
}

compile all pyproject.toml --all-extras --group dev --group docs --group examples ${UPGRADE:+--upgrade}
compile build requirements/build.in ${UPGRADE:+--upgrade}
compile bootstrap requirements/bootstrap.in ${UPGRADE:+--upgrade}
compile compiler requirements/compiler.in ${UPGRADE:+--upgrade}
compile packaging requirements/packaging.in ${UPGRADE:+--upgrade}
compile s3server requirements/s3server.in ${UPGRADE:+--upgrade}
compile dbt requirements/dbt.in ${UPGRADE:+--upgrade}
# Without the settings of pyproject.toml, which leave out pandas. numpy is there, with Spark.
for beside_spark in notebook connect; do
    compile $beside_spark requirements/$beside_spark.in --no-config --no-emit-package numpy \
        ${UPGRADE:+--upgrade}
done

if grep -n '://' requirements/*.lock; then
    echo "lock: an address got into the files above" >&2
    exit 1
fi
