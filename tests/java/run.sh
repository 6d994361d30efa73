#!/bin/sh
# `make test-java`: Kafka's own code against our files and our cluster.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
. "$here/jars.sh"
kafka_jars test-java "$here/pom.xml" "41 MB"

cd "$here/../.."
"${VENV:-.venv}/bin/python" -m pytest "$here/check_files.py" "$here/check_clients.py" "$here/check_tools.py" \
    "$here/check_groups.py" "$@"
