"""The configuration keys of the quorum: its timeouts, and the size of its log. A pure module."""

from minibroker.metadata.config_keys import INT, LONG, ConfigKey, Departure, at_least, broker_key

SOONER = "the cluster recovers within seconds when a node dies; a node that pauses for longer counts as dead"


def timeout_key(name: str, default_ms: int, kafka_ms: int, about: str) -> ConfigKey[int]:
    """A timeout that is shorter than `kafka_ms`, Kafka's default."""
    return broker_key(name, INT, default_ms, at_least(1), about, departure=Departure(str(kafka_ms), SOONER))


QUORUM_ELECTION_TIMEOUT_MS = timeout_key(
    "controller.quorum.election.timeout.ms",
    500,
    1000,
    "How long a voter without a leader, or a candidate without enough votes, waits before it asks for votes again.",
)
QUORUM_FETCH_TIMEOUT_MS = timeout_key(
    "controller.quorum.fetch.timeout.ms",
    1000,
    2000,
    "How long a follower of the quorum waits for its leader before it stands for election.",
)
METADATA_SNAPSHOT_BYTES = broker_key(
    "metadata.log.max.record.bytes.between.snapshots",
    LONG,
    20 * 1024**2,
    at_least(1),
    "How large the metadata log may grow before a snapshot replaces its beginning.",
)
