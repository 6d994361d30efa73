"""Finds the problems of a cluster, and writes what is wrong, why, and what to do. This module sends no requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from minibroker.cli.prospects import Prospect
from minibroker.cli.tables import counted

SILENT_MS_MAX = 3000
"""A node counts as silent after this long without a fetch; normally it fetches metadata several times a second."""
_NAMED_MAX = 3


class Role(Enum):
    """The role of a node in the quorum."""

    CONTROLLER = "controller"  # it leads the quorum
    VOTER = "voter"
    OBSERVER = "observer"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node; an unknown value is None."""

    node_id: int
    address: str | None = None
    rack: str | None = None
    role: Role | None = None
    is_broker: bool = True
    is_fenced: bool = False
    log_end_offset: int | None = None
    silent_ms: int | None = None
    is_unheard: bool = False
    """Whether this node has not fetched since the controller was elected."""
    is_unreached: bool = False
    """Whether the node accepts no connection at its address; this is tried only while there is no controller."""
    has_another_disk: bool = False
    """Whether the voter set still names the node's earlier disk, so that the node is only an observer now."""
    is_doubled: bool = False
    """Whether two processes with this node.id follow the metadata at the same time, each with its own disk."""

    @property
    def is_gone(self) -> bool:
        """Whether the node does not take part in the cluster at the moment."""
        return self.is_fenced or self.is_unheard or (self.silent_ms or 0) > SILENT_MS_MAX

    @property
    def state(self) -> str:
        """The state of the node in a word or two."""
        if self.is_fenced:
            return "fenced"
        if self.is_unreached:
            return "no answer"
        return "silent" if self.is_gone else "live"

    def __str__(self) -> str:
        return f"node {self.node_id}" + (f" at {self.address}" if self.address else "")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One partition; a leader_id of -1 means that it has no leader."""

    name: str
    topic: str
    number: int
    leader_id: int
    replicas: Sequence[int]
    isr: Sequence[int]
    adding: Sequence[int] = ()
    eligible: Sequence[int] = ()
    """Replicas that are not in sync, but have every acknowledged record."""
    prospect: Prospect | None = None
    """What an unclean election would do, if there is no leader and replicas have answered."""
    min_insync_replicas: int = 1

    @property
    def missing(self) -> list[int]:
        """The replicas that should be in sync and are not; a replica that is being added is not missing."""
        return [it for it in self.replicas if it not in self.isr and it not in self.adding]

    @property
    def is_offline(self) -> bool:
        """Whether the partition has no leader."""
        return self.leader_id < 0

    @property
    def min_isr(self) -> int:
        """How many replicas must be in sync for acks=all: as in Kafka, never more than the partition has."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the leader refuses records with acks=all."""
        return len(self.isr) < self.min_isr

    @property
    def is_led_elsewhere(self) -> bool:
        """Whether the leader is not the preferred leader, which is the first replica."""
        return not self.is_offline and self.leader_id != self.replicas[0]


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """The quorum of the metadata log."""

    leader_id: int
    epoch: int
    high_watermark: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that a cluster reports; `quorum` is None while there is no controller."""

    cluster_id: str
    nodes: Sequence[Node]
    partitions: Sequence[Partition] = ()
    quorum: Quorum | None = None
    moving: Sequence[str] = ()

    @property
    def voters(self) -> list[Node]:
        """The nodes in the voter set, the controller included."""
        return [it for it in self.nodes if it.role in (Role.CONTROLLER, Role.VOTER)]

    def node(self, node_id: int) -> Node:
        """The node with this id. A node that the cluster does not list counts as fenced."""
        return next((it for it in self.nodes if it.node_id == node_id), Node(node_id=node_id, is_fenced=True))


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what to do about it."""

    what: str
    to_do: str


def findings(facts: Facts) -> list[Finding]:
    """Everything that is wrong, the worst first."""
    return [finding for find in _FINDERS for finding in find(facts)]


# Findings -------------------------------------------------------------------------------------------------------------


def _no_controller(facts: Facts) -> Iterable[Finding]:
    if facts.quorum is None:
        down = [it.node_id for it in facts.nodes if it.is_unreached]
        first = f"{_nodes(down)}, which {_do(down)} not answer, and the" if down else "the"
        yield Finding(
            "there is no controller: no majority of the voters is running, or an election is under way. Partitions "
            "that have a leader keep working; no new leader is elected, and nothing can be created or changed. Leaders "
            "and in-sync replicas are shown as they were last known",
            f"look again in a few seconds; if there is still no controller, start {first} nodes in "
            "controller.quorum.voters that are down",
        )


def _offline(facts: Facts) -> Iterable[Finding]:
    found = [it for it in facts.partitions if it.is_offline]
    if not found:
        return
    holders = sorted({node_id for it in found for node_id in (*it.isr, *it.eligible)})
    one = found[0]
    unclean = f"`minibroker topics elect-leaders {one.topic} --partition {one.number} --unclean`"
    loses = f"the records that it lacks are lost{f' ({one.name}: {one.prospect})' if one.prospect else ''}"
    if holders:
        why = f"only {_nodes(holders)} {_has(holders)} all the records, and {_is(holders)} not running"
        # One replica that has all the records is enough for a partition.
        one_of = "one of " if len(found) == 1 and len(holders) > 1 else ""
        to_do = f"start {one_of}{_nodes(holders)}. If {_it(holders)} lost for good, {unclean} elects another replica, "
        to_do += f"and {loses}"
    else:
        why = "no replica is known to have all the records"
        to_do = f"start every node that has a replica. Then {unclean} elects the longest log, and {loses}"
    yield Finding(f"{_names(found)} {_has(found)} no leader: {why}", to_do)


def _under_min_isr(facts: Facts) -> Iterable[Finding]:
    found = [it for it in facts.partitions if it.is_under_min_isr and not it.is_offline]
    if found:
        one = found[0]
        yield Finding(
            f"{_names(found)} {_has(found)} fewer replicas in sync than min.insync.replicas demands "
            f"({one.name}: {len(one.isr)} of {one.min_isr}): records with acks=all are refused there",
            "start the nodes of the missing replicas; a lower min.insync.replicas would let records be written that "
            "a single failure can lose",
        )


def _gone_nodes(facts: Facts) -> Iterable[Finding]:
    for node in facts.nodes:
        if node.is_fenced:
            yield Finding(
                f"{node} is fenced: it was stopped, or sent no heartbeat for broker.session.timeout.ms. It leads no "
                f"partition and {_in_sync_text(facts, node)}",
                f"start it again, or find in its log why it is silent. {_if_it_is_gone(facts, node)}",
            )
        elif node.is_gone:
            since = f"for {(node.silent_ms or 0) / 1000:.0f} s"
            if node.is_unheard:
                since = "since the present controller was elected"
            yield Finding(
                f"{node} has not fetched the metadata {since}",
                "start it again, or check whether it can reach the controller over the network",
            )


def _in_sync_text(facts: Facts, node: Node) -> str:
    # In a cluster without eligible leader replicas, the last in-sync replica stays in the ISR when its node is fenced.
    is_last = any(list(it.isr) == [node.node_id] for it in facts.partitions)
    return "is in sync only where it is the last in-sync replica" if is_last else "is in sync for none"


def _if_it_is_gone(facts: Facts, node: Node) -> str:
    forget = f"`minibroker cluster remove-broker {node.node_id}`"
    if not any(node.node_id in it.replicas for it in facts.partitions):
        return f"It has no replicas: if it will not come back, {forget} unregisters it"
    move = f"`minibroker topics reassign --from {node.node_id}`"
    return f"If it is lost for good, {move} moves its replicas to other nodes, and then {forget} unregisters it"


def _doubles(facts: Facts) -> Iterable[Finding]:
    for node in facts.nodes:
        if node.is_doubled:
            yield Finding(
                f"two processes run as node {node.node_id}, each with a disk of its own; the cluster keeps the "
                "process that registered first and refuses the other",
                f"find the refused process, whose log says that node {node.node_id} is registered or leads already, "
                "and give it another node.id",
            )


def _other_disks(facts: Facts) -> Iterable[Finding]:
    for node in facts.nodes:
        if node.has_another_disk:
            again = "it serves its partitions, but it" if node.is_broker else "it"
            # A broker has registered its address; a node that is only a controller has not.
            where = f" --address {node.address}" if not node.is_broker and node.address else ""
            yield Finding(
                f"{node} restarted with another disk than the one it had as a voter: {again} does not vote, because "
                "it cannot know how it voted before",
                "bring the old disk back if you can. If it is lost, make the node a voter with its new disk: "
                f"`minibroker cluster remove-voter {node.node_id}`, then `minibroker cluster add-voter "
                f"{node.node_id}{where}`",
            )


def _few_voters(facts: Facts) -> Iterable[Finding]:
    voters = facts.voters
    majority = len(voters) // 2 + 1
    away = [it for it in voters if it.is_gone or it.has_another_disk]
    running = len(voters) - len(away)
    if facts.quorum is None or not away or running > majority:
        return
    others = [it.node_id for it in away if it.has_another_disk and not it.is_gone]
    first = (
        f"make {_nodes(others)} {'a voter' if len(others) == 1 else 'voters'} again as described above"
        if len(others) == len(away)
        else "start the other voters again"
    )
    yield Finding(
        f"{running} of {counted(len(voters), 'voter')} {'is' if running == 1 else 'are'} running, and a majority needs "
        f"{majority}: if one more stops, there is no controller",
        f"{first} before you restart any other node",
    )


def _under_replicated(facts: Facts) -> Iterable[Finding]:
    lacking: dict[int, list[Partition]] = {}
    for it in facts.partitions:
        for node_id in it.missing:
            lacking.setdefault(node_id, []).append(it)
    for node_id, found in sorted(lacking.items()):
        if facts.node(node_id).is_gone:
            yield Finding(
                f"{_names(found)} {_has(found)} no replica in sync on node {node_id}, because that node is not running",
                f"start node {node_id}: its replicas then catch up without help",
            )
        else:
            yield Finding(
                f"{_names(found)} {_has(found)} no replica in sync on node {node_id}, though that node is running: "
                "the replica is catching up, or is slower than replica.lag.time.max.ms allows",
                f"look again in a minute; if nothing has changed, check the disk, the network and the log of node "
                f"{node_id}",
            )


def _led_elsewhere(facts: Facts) -> Iterable[Finding]:
    # A preferred leader that is not in sync cannot be elected yet.
    found = [it for it in facts.partitions if it.is_led_elsewhere and it.replicas[0] in it.isr]
    if found:
        yield Finding(
            f"{_names(found)} {_is(found)} not led by {_its(found)} preferred leader, which {_is(found)} in sync: the "
            "load of leaders is uneven",
            "wait: the controller elects preferred leaders every leader.imbalance.check.interval.seconds. Or do it "
            "now: `minibroker topics elect-leaders`",
        )


_FINDERS: Sequence[Callable[[Facts], Iterable[Finding]]] = (
    _no_controller,
    _offline,
    _under_min_isr,
    _gone_nodes,
    _doubles,
    _other_disks,
    _few_voters,
    _under_replicated,
    _led_elsewhere,
)


# Advice ---------------------------------------------------------------------------------------------------------------


def advice(facts: Facts) -> list[str]:
    """Advice about a cluster that works but could be set up better, one text for each point."""
    # The owner of a single node needs no advice about voters.
    return [] if len(facts.nodes) == 1 or facts.quorum is None else voters_advice(len(facts.voters))


def voters_advice(count: int) -> list[str]:
    """Advice if another number of voters would be better; none for 3, 5, 7 and so on."""
    if count < 3:
        return [
            f"{counted(count, 'voter')}: if {'it' if count == 1 else 'one'} stops, there is no controller. 3 voters "
            "tolerate the failure of one: `minibroker cluster add-voter` adds a voter"
        ]
    if count % 2 == 0:
        return [
            f"{count} voters tolerate only as many failures as {count - 1} voters, because {count // 2 + 1} of them "
            "must be running. Add one with `minibroker cluster add-voter`, or remove one with `minibroker cluster"
            " remove-voter`"
        ]
    return []


# Words ----------------------------------------------------------------------------------------------------------------


def _names(partitions: Sequence[Partition]) -> str:
    names = [it.name for it in partitions]
    more = len(names) - _NAMED_MAX
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_NAMED_MAX])} and {more} more"


def _nodes(node_ids: Sequence[int]) -> str:
    return f"node{'s' if len(node_ids) > 1 else ''} {', '.join(map(str, node_ids))}"


def _has(them: Sequence[object]) -> str:
    return "has" if len(them) == 1 else "have"


def _is(them: Sequence[object]) -> str:
    return "is" if len(them) == 1 else "are"


def _do(them: Sequence[object]) -> str:
    return "does" if len(them) == 1 else "do"


def _it(them: Sequence[object]) -> str:
    return "it is" if len(them) == 1 else "they are"


def _its(them: Sequence[object]) -> str:
    return "its" if len(them) == 1 else "their"


# Counts ---------------------------------------------------------------------------------------------------------------


def counts(facts: Facts) -> Mapping[str, int]:
    """How many partitions there are, and how many of them are in each unhealthy state."""
    partitions = facts.partitions
    return {
        "total": len(partitions),
        "offline": sum(it.is_offline for it in partitions),
        "under_min_isr": sum(it.is_under_min_isr for it in partitions),
        "under_replicated": sum(bool(it.missing) for it in partitions),
        "not_on_preferred_leader": sum(it.is_led_elsewhere for it in partitions),
        "moving": len(facts.moving),
    }
