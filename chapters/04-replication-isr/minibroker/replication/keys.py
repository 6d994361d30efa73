"""The configuration keys of replication: replicas, the in-sync set, and the controller. A pure module.

The keys and their defaults are Kafka's.
"""

import re
from functools import cache
from typing import NamedTuple

from minibroker.metadata.broker_keys import BROKER_ID
from minibroker.metadata.config_keys import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Check,
    ConfigKey,
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
    "With acks=all, a write is refused when fewer replicas than this are in sync.",
    "min.insync.replicas",
)
UNCLEAN_LEADER_ELECTION_ENABLE = topic_key(
    "unclean.leader.election.enable",
    BOOLEAN,
    "false",
    None,
    "Whether a replica that is not in sync may become leader if no in-sync replica is alive; records may be lost.",
    "unclean.leader.election.enable",
)

REPLICA_LAG_TIME_MAX_MS = broker_key(
    "replica.lag.time.max.ms",
    LONG,
    30_000,
    at_least(1),
    "How long a follower may lag before it leaves the in-sync set.",
)
REPLICA_FETCH_WAIT_MAX_MS = broker_key(
    "replica.fetch.wait.max.ms",
    INT,
    500,
    at_least(1),
    "How long the leader may delay the answer to a fetch while it has too few bytes.",
)
REPLICA_FETCH_MIN_BYTES = broker_key(
    "replica.fetch.min.bytes", INT, 1, at_least(0), "How many bytes the leader waits for before it answers a fetch."
)
REPLICA_FETCH_MAX_BYTES = broker_key(
    "replica.fetch.max.bytes",
    INT,
    1024**2,
    at_least(0),
    "How many bytes of one partition a follower fetches at once.",
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = broker_key(
    "replica.fetch.response.max.bytes",
    INT,
    10 * 1024**2,
    at_least(0),
    "How many bytes a follower fetches from one leader at once.",
)
REPLICA_FETCH_BACKOFF_MS = broker_key(
    "replica.fetch.backoff.ms", INT, 1000, at_least(0), "How long a follower waits after an error."
)
HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = broker_key(
    "replica.high.watermark.checkpoint.interval.ms",
    LONG,
    5000,
    at_least(1),
    "How often the high watermarks are written to disk.",
)


# Throttled replicas (KIP-73) ------------------------------------------------------------------------------------------

ALL_REPLICAS = "*"
_REPLICA = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


def _are_replicas(items: tuple[str, ...]) -> bool:
    if items == (ALL_REPLICAS,):
        return True
    # Kafka's tools leave a comma at the end of the list.
    while items and not items[-1]:
        items = items[:-1]
    found = [_REPLICA.fullmatch(it) for it in items]
    return all(it is not None and max(int(it[1]), int(it[2])) <= INT_MAX for it in found)


_REPLICAS = Check(_are_replicas, "* or a list of partition:broker")

LEADER_REPLICATION_THROTTLED_REPLICAS = topic_key(
    "leader.replication.throttled.replicas",
    LIST,
    "",
    _REPLICAS,
    "The replicas, as partition:broker, that send to followers at a throttled rate while they lead; * means all.",
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = topic_key(
    "follower.replication.throttled.replicas",
    LIST,
    "",
    _REPLICAS,
    "The replicas, as partition:broker, that fetch from their leader at a throttled rate; * means all.",
)
LEADER_REPLICATION_THROTTLED_RATE = broker_key(
    "leader.replication.throttled.rate",
    LONG,
    LONG_MAX,
    at_least(0),
    "How many bytes a second throttled replicas send together to followers that are not in sync.",
    is_dynamic=True,
)
FOLLOWER_REPLICATION_THROTTLED_RATE = broker_key(
    "follower.replication.throttled.rate",
    LONG,
    LONG_MAX,
    at_least(0),
    "How many bytes a second throttled replicas fetch together from their leaders.",
    is_dynamic=True,
)


INTER_BROKER_LISTENER_NAME: ConfigKey[str | None] = broker_key(
    "inter.broker.listener.name",
    STRING,
    None,
    None,
    "The listener by which this broker fetches from other brokers; every broker must have it. By default, the address "
    "in controller.quorum.voters is used, or the first advertised listener.",
)


def check_inter_broker_listener(config: NodeConfig) -> None:
    """Refuse a node that does not advertise the listener by which the brokers of its cluster reach each other."""
    name = INTER_BROKER_LISTENER_NAME.of(config)
    known = [it.name for it in config.advertised_listeners]
    if name is not None and name.upper() not in known:
        raise InvalidConfig(
            f"inter.broker.listener.name={name}, but the advertised listeners are {known}: other brokers could not"
            " fetch from this one"
        )


# Nodes ---------------------------------------------------------------------------------------------------------------

CLUSTER_SECRET_FILE: ConfigKey[str | None] = broker_key(
    "minibroker.cluster.secret.file",
    STRING,
    None,
    None,
    "The file with the secret by which the nodes of a cluster know each other: the same on every node, with mode 600. "
    "By default, the nodes of a cluster on one machine create cluster.secret beside their data directories, and a "
    "single node creates it inside its data directory.",
)


# Voters ---------------------------------------------------------------------------------------------------------------


class QuorumVoter(NamedTuple):
    """A voter of the controller quorum, and its address."""

    node_id: int
    host: str
    port: int


_VOTER = re.compile(r"(\d{1,9})@([^@,\s]+):(\d{1,5})")


@cache
def parse_voters(text: str) -> tuple[QuorumVoter, ...]:
    """Read `ID@HOST:PORT,…`; an empty text has no voters. A malformed text raises ValueError."""
    voters = []
    for item in filter(None, (it.strip() for it in text.split(","))):
        match = _VOTER.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} is not ID@HOST:PORT")
        voters.append(QuorumVoter(int(match[1]), match[2].strip("[]"), int(match[3])))
    if len({it.node_id for it in voters}) < len(voters) or len({it[1:] for it in voters}) < len(voters):
        raise ValueError(f"{text!r} names a node or an address twice")
    if not all(0 < it.port <= PORT_MAX for it in voters):
        raise ValueError(f"{text!r} has a port that is not between 1 and {PORT_MAX}")
    return tuple(voters)


_VOTERS = is_read_by(parse_voters, "a list of ID@HOST:PORT, each id and each address once, ports from 1 to 65535")

QUORUM_VOTERS = broker_key(
    "controller.quorum.voters",
    STRING,
    "",
    _VOTERS,
    "The voters of the controller quorum, as ID@HOST:PORT of their listeners; if empty, this node is the only voter.",
)


def quorum_voters(config: NodeConfig) -> tuple[QuorumVoter, ...]:
    """The voters of the controller quorum; if empty, this node is the only voter."""
    return parse_voters(QUORUM_VOTERS.of(config))


def check_own_number(config: NodeConfig) -> None:
    """Refuse a node that has voters configured but no node.id: the default id may belong to another node."""
    voters = quorum_voters(config)
    if voters and "node.id" not in config.settings and BROKER_ID.of(config) == -1:
        names = sorted(it.node_id for it in voters)
        raise InvalidConfig(f"node.id is not set, and controller.quorum.voters names {names}: set this node's own id")


BROKER_RULES += [check_own_number, check_inter_broker_listener]
