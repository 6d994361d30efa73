"""The configuration keys of the controller: roles, sessions, leader balance. A pure module."""

from minibroker.metadata.config_keys import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    Check,
    ConfigKey,
    Departure,
    at_least,
    broker_key,
)
from minibroker.metadata.configs import BROKER_RULES, NodeConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.raft.keys import timeout_key
from minibroker.replication.keys import quorum_voters

_ROLES = Check(
    lambda value: value in (("broker",), ("controller",), ("broker", "controller"), ("controller", "broker")),
    "broker, controller, or both",
)

PROCESS_ROLES: ConfigKey[tuple[str, ...] | None] = broker_key(
    "process.roles",
    LIST,
    None,
    _ROLES,
    "The roles of this node: a broker has partitions, a controller votes and keeps the metadata log. If not set, the "
    "node is a broker, and also a controller if it is among the voters.",
)
BROKER_SESSION_TIMEOUT_MS = timeout_key(
    "broker.session.timeout.ms", 2000, 9000, "How long a broker counts as alive after its last heartbeat."
)
BROKER_HEARTBEAT_INTERVAL_MS = broker_key(
    "broker.heartbeat.interval.ms",
    INT,
    500,
    at_least(1),
    "How often a broker sends a heartbeat to the controller.",
    departure=Departure("2000", "the session is shorter than in Kafka, and several heartbeats must fit into it"),
)
AUTO_LEADER_REBALANCE_ENABLE = broker_key(
    "auto.leader.rebalance.enable",
    BOOLEAN,
    "true",
    None,
    "Whether the controller regularly elects preferred leaders that are in sync but do not lead.",
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = broker_key(
    "leader.imbalance.check.interval.seconds",
    LONG,
    300,
    at_least(1),
    "How often the controller looks for partitions whose preferred leader could lead, but does not.",
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = broker_key(
    "max.request.partition.size.limit",
    INT,
    2000,
    at_least(1),
    "The most partitions in one response to DescribeTopicPartitions.",
)

CONTROLLER_LISTENER_NAMES = broker_key(
    "controller.listener.names",
    LIST,
    "",
    None,
    "The listener on which controllers receive requests; the first name counts. By default, it is the first listener.",
    departure=Departure(None, "Kafka requires this key; here one listener serves clients, brokers and controllers"),
)


def controller_listener(config: NodeConfig) -> str:
    """The name of the listener on which controllers, this node among them, receive requests."""
    names = [it.upper() for it in CONTROLLER_LISTENER_NAMES.of(config)]
    own = [it.name for it in config.listeners]
    # A node that is not a controller may set the key to the listener of the controllers, without having it.
    return next((it for it in names if it in own), own[0])


def process_roles(config: NodeConfig) -> frozenset[str]:
    """The roles of a node: `broker`, `controller`, or both."""
    stated = PROCESS_ROLES.of(config)
    if stated is not None:
        return frozenset(stated)
    return frozenset(("broker", "controller") if _is_voter(config) else ("broker",))


def _is_voter(config: NodeConfig) -> bool:
    voters = quorum_voters(config)
    return not voters or config.node_id in {it.node_id for it in voters}


def check_roles(config: NodeConfig) -> None:
    """Refuse roles that contradict the voters: two nodes with different voters could form two clusters."""
    voters, node_id = sorted(it.node_id for it in quorum_voters(config)), config.node_id
    roles, is_voter = process_roles(config), _is_voter(config)
    if "controller" not in roles and is_voter:
        raise InvalidConfig(
            f"process.roles=broker, but controller.quorum.voters names node {node_id} as a voter: add controller "
            f"to process.roles, or leave {node_id} out of the voters"
            if voters
            else "process.roles=broker needs controller.quorum.voters: the voters as ID@HOST:PORT,…"
        )
    if not voters and roles == {"controller"}:
        raise InvalidConfig(
            "process.roles=controller needs controller.quorum.voters: the voters as ID@HOST:PORT,…, this node among "
            "them"
        )
    if "controller" in roles and not is_voter:
        raise InvalidConfig(
            f"process.roles has controller, but controller.quorum.voters names {voters} and not node "
            f"{node_id}: add {node_id}@HOST:PORT to the voters, or set process.roles=broker"
        )


def check_place(config: NodeConfig) -> None:
    """Refuse a voter that does not listen at its port in controller.quorum.voters."""
    me = next((it for it in quorum_voters(config) if it.node_id == config.node_id), None)
    # Port 0 becomes a real port only later, so it cannot be compared here.
    ports = [it.port for it in (*config.listeners, *config.advertised_listeners)]
    if me is not None and me.port not in ports and 0 not in ports:
        raise InvalidConfig(
            f"controller.quorum.voters has node {me.node_id} at port {me.port}, but listeners={config.listeners[0]}: "
            "the other nodes could not connect; set both to the same port"
        )


def check_session(config: NodeConfig) -> None:
    """Refuse a session that is shorter than two heartbeat intervals."""
    session_ms, interval_ms = BROKER_SESSION_TIMEOUT_MS.of(config), BROKER_HEARTBEAT_INTERVAL_MS.of(config)
    if session_ms < 2 * interval_ms:
        raise InvalidConfig(
            f"broker.session.timeout.ms={session_ms} is less than twice broker.heartbeat.interval.ms={interval_ms}:"
            " one late heartbeat would fence the broker"
        )


def check_controller_listener(config: NodeConfig) -> None:
    """Refuse a controller that has none of the listeners in controller.listener.names."""
    names, own = CONTROLLER_LISTENER_NAMES.of(config), [it.name for it in config.listeners]
    if names and "controller" in process_roles(config) and not {it.upper() for it in names} & set(own):
        raise InvalidConfig(
            f"controller.listener.names={','.join(names)}, but listeners has only {own}: the other nodes could not ask"
            " this controller"
        )


BROKER_RULES += [check_roles, check_place, check_session, check_controller_listener]
