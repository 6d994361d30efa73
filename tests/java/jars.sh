# Sourced by the scripts beside it: `kafka_jars TARGET POM SIZE` sets KAFKA_CLASSPATH to the jars that the POM names.
# Without Maven and Java 17 it says so and ends the script, and that is no failure.
kafka_jars() {
    java_version=$(java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p')
    if ! command -v mvn > /dev/null || [ "${java_version:-0}" -lt 17 ]; then
        echo "make $1: skipped; it needs Maven (mvn) and Java 17 or newer on this machine"
        exit 0
    fi
    # Maven keeps what it fetched, so the network is asked only when something is missing.
    classpath=$(mktemp)
    trap 'rm -f "$classpath"' EXIT
    if ! resolve "$2" --offline > /dev/null 2>&1; then
        echo "make $1: fetching Kafka's jars, $3, once"
        resolve "$2"
    fi
    KAFKA_CLASSPATH=$(cat "$classpath")
    export KAFKA_CLASSPATH
}

resolve() {
    pom=$1
    shift
    mvn -B -q -f "$pom" "$@" "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath" \
        -Dmdep.outputFile="$classpath"
}
