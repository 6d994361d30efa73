"""The configuration keys of replication: replicas, the in-sync set, and the node that decides. A pure module.

They are Kafka's, with Kafka's defaults.
"""

import re
from typing import NamedTuple

from minibroker.metadata.broker_keys import BROKER_ID
from minibroker.metadata.config_keys import (
    BOOLEAN,
    INT,
    LONG,
    STRING,
    at_least,
    broker_key,
    is_read_by,
    topic_key,
)
from minibroker.metadata.configs import BROKER_RULES, NodeConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.listeners import PORT_MAX

MIN_INSYNC_REPLICAS = topic_key(
    "min.insync.replicas",
    INT,
    1,
    at_least(1),
    "With acks=all, a write is refused when fewer replicas are in sync.",
    "min.insync.replicas",
)
UNCLEAN_LEADER_ELECTION_ENABLE = topic_key(
    "unclean.leader.election.enable",
    BOOLEAN,
    "false",
    None,
    "Whether a replica that is not in sync may become leader when no other is left: records are lost then.",
    "unclean.leader.election.enable",
)

REPLICA_LAG_TIME_MAX_MS = broker_key(
    "replica.lag.time.max.ms",
    LONG,
    30_000,
    at_least(1),
    "How long a follower may be behind before it is not in sync any more.",
)
REPLICA_FETCH_WAIT_MAX_MS = broker_key(
    "replica.fetch.wait.max.ms", INT, 500, at_least(1), "How long a leader may let a follower wait for records."
)
REPLICA_FETCH_MIN_BYTES = broker_key(
    "replica.fetch.min.bytes", INT, 1, at_least(0), "How many bytes are worth an answer before that."
)
REPLICA_FETCH_MAX_BYTES = broker_key(
    "replica.fetch.max.bytes", INT, 1024**2, at_least(0), "How much a follower takes of one partition at once."
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = broker_key(
    "replica.fetch.response.max.bytes",
    INT,
    10 * 1024**2,
    at_least(0),
    "How much a follower takes of one leader at once.",
)
REPLICA_FETCH_BACKOFF_MS = broker_key(
    "replica.fetch.backoff.ms", INT, 1000, at_least(0), "How long a follower waits after an error."
)
HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = broker_key(
    "replica.high.watermark.checkpoint.interval.ms",
    LONG,
    5000,
    at_least(1),
    "How often high watermarks are written to the disk.",
)


# Voters ---------------------------------------------------------------------------------------------------------------


class QuorumVoter(NamedTuple):
    """A node that decides about metadata, and where it is before any metadata says so."""

    node_id: int
    host: str
    port: int


_VOTER = re.compile(r"(\d{1,9})@([^@,\s]+):(\d{1,5})")


def parse_voters(text: str) -> tuple[QuorumVoter, ...]:
    """Read `ID@HOST:PORT,…`; nothing is no voter. What cannot be one is a ValueError."""
    voters = []
    for item in filter(None, (it.strip() for it in text.split(","))):
        match = _VOTER.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} is not ID@HOST:PORT")
        voters.append(QuorumVoter(int(match[1]), match[2].strip("[]"), int(match[3])))
    if len({it.node_id for it in voters}) < len(voters) or len({it[1:] for it in voters}) < len(voters):
        raise ValueError(f"{text!r} names a node or a place twice")
    if not all(0 < it.port <= PORT_MAX for it in voters):
        raise ValueError(f"{text!r} has a port that is not between 1 and {PORT_MAX}")
    return tuple(voters)


_VOTERS = is_read_by(parse_voters, "a list of ID@HOST:PORT, each id and each place once, ports from 1 to 65535")

QUORUM_VOTERS = broker_key(
    "controller.quorum.voters",
    STRING,
    "",
    _VOTERS,
    "Which nodes decide about metadata, as ID@HOST:PORT, where each is its listener; if not set, this node alone.",
)


def quorum_voters(config: NodeConfig) -> tuple[QuorumVoter, ...]:
    """The nodes that decide about metadata; none: this one alone."""
    return parse_voters(QUORUM_VOTERS.of(config))


def check_own_number(config: NodeConfig) -> None:
    """Demand a number of a node that is one of several: the default may be another node's."""
    voters = quorum_voters(config)
    if voters and "node.id" not in config.settings and BROKER_ID.of(config) == -1:
        names = sorted(it.node_id for it in voters)
        raise InvalidConfig(
            f"node.id is not set, and controller.quorum.voters names {names}: say which node this one is"
        )


BROKER_RULES.append(check_own_number)
