#!/usr/bin/env bash
# fetch.sh VERSION TARGET: lays the jars of a published RocketMQ and what they need into the folder
# TARGET, once.
# Two callers at the same time are safe: the folder appears whole or not at all.
set -euo pipefail
version=$1 target=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -d "$target" ] && exit 0
mkdir -p "$(dirname "$target")"
fresh=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
mvn -q -B -f "$here/pom.xml" -Drocketmq.version="$version" dependency:copy-dependencies \
    -DoutputDirectory="$fresh" >&2
chmod 755 "$fresh"
mv -T "$fresh" "$target" 2>/dev/null || [ -d "$target" ]
