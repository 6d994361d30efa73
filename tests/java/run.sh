#!/bin/sh
# `make test-java`: Kafka's own code against our files. Without Maven and Java 17 it says so, and that is no failure.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
java_version=$(java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p')
if ! command -v mvn > /dev/null || [ "${java_version:-0}" -lt 17 ]; then
    echo "make test-java: skipped; it needs Maven (mvn) and Java 17 or newer on this machine"
    exit 0
fi

# Maven keeps what it fetched, so the network is asked only when something is missing.
classpath=$(mktemp)
trap 'rm -f "$classpath"' EXIT
goal=org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath
resolve() {
    mvn -B -q -f "$here/pom.xml" "$@" "$goal" -Dmdep.outputFile="$classpath"
}
if ! resolve --offline > /dev/null 2>&1; then
    echo "make test-java: fetching Kafka's jars, 31 MB, once"
    resolve
fi

cd "$here/../.."
KAFKA_CLASSPATH=$(cat "$classpath") "${VENV:-.venv}/bin/python" -m pytest "$here/check_files.py" "$@"
