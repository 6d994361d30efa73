#!/bin/sh
# `make test-kafka`: our tests against Apache Kafka in the place of our broker.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
. "$here/jars.sh"
kafka_jars test-kafka "$here/broker.xml" "45 MB"

cd "$here/../.."
python=${VENV:-.venv}/bin/python
MINIBROKER_TEST_SERVE="$python $here/serve_kafka.py"
export MINIBROKER_TEST_SERVE
"$python" -m pytest "$@"
