"""The configuration keys of the quorum: its timeouts, and the size of its log. A pure module."""

from minibroker.metadata.config_keys import INT, LONG, Departure, at_least, broker_key

SOONER = "the cluster goes on within seconds when a node dies; a node that pauses for longer is taken for dead"

QUORUM_ELECTION_TIMEOUT_MS = broker_key(
    "controller.quorum.election.timeout.ms",
    INT,
    500,
    at_least(1),
    "How long a voter waits for a leader, or a candidate for votes, before it tries by itself.",
    departure=Departure("1000", SOONER),
)
QUORUM_FETCH_TIMEOUT_MS = broker_key(
    "controller.quorum.fetch.timeout.ms",
    INT,
    1000,
    at_least(1),
    "How long a follower of the quorum waits for its leader before it stands for election.",
    departure=Departure("2000", SOONER),
)
METADATA_SNAPSHOT_BYTES = broker_key(
    "metadata.log.max.record.bytes.between.snapshots",
    LONG,
    20 * 1024**2,
    at_least(1),
    "How large the metadata log may be before a snapshot takes the place of its beginning.",
)
