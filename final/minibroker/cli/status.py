"""What is wrong with a cluster, why, and what to do: sentences made from facts. Nothing here asks anybody."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from minibroker.cli.tables import counted

SILENT_MS_MAX = 3000
"""Who takes part in the quorum fetches several times a second."""
_NAMED_MAX = 3


class Role(Enum):
    """What a node is in the quorum."""

    CONTROLLER = "controller"  # it leads, and so decides
    VOTER = "voter"
    OBSERVER = "observer"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node; what nobody told is None."""

    node_id: int
    address: str | None = None
    rack: str | None = None
    role: Role | None = None
    is_broker: bool = True
    is_fenced: bool = False
    log_end_offset: int | None = None
    silent_ms: int | None = None
    is_unreached: bool = False
    """Whether nobody takes connections at its address; looked at only where nobody decides."""
    has_another_disk: bool = False
    """Whether the voters know it with the disk that it had before: it follows, but its vote does not count."""
    is_doubled: bool = False
    """Whether two of this number follow the metadata at the same time, each with a disk of its own."""

    @property
    def is_gone(self) -> bool:
        """Whether it does not take part at the moment."""
        return self.is_fenced or (self.silent_ms or 0) > SILENT_MS_MAX

    @property
    def state(self) -> str:
        """In a word."""
        if self.is_fenced:
            return "fenced"
        if self.is_unreached:
            return "no answer"
        return "silent" if self.is_gone else "live"

    def __str__(self) -> str:
        return f"node {self.node_id}" + (f" at {self.address}" if self.address else "")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One partition; a leader of -1 is none."""

    name: str
    topic: str
    number: int
    leader_id: int
    replicas: Sequence[int]
    isr: Sequence[int]
    adding: Sequence[int] = ()
    min_isr: int = 1

    @property
    def missing(self) -> list[int]:
        """The replicas that should be in sync, and are not."""
        return [it for it in self.replicas if it not in self.isr and it not in self.adding]

    @property
    def is_offline(self) -> bool:
        """Whether nobody leads it."""
        return self.leader_id < 0

    @property
    def is_under_min_isr(self) -> bool:
        """Whether it takes no more records with acks=all."""
        return len(self.isr) < self.min_isr

    @property
    def is_led_elsewhere(self) -> bool:
        """Whether another one than the first of its replicas leads it."""
        return not self.is_offline and self.leader_id != self.replicas[0]


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """Who decides."""

    leader_id: int
    epoch: int
    high_watermark: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a cluster says of itself; no quorum is one that nobody could tell about."""

    cluster_id: str
    nodes: Sequence[Node]
    partitions: Sequence[Partition] = ()
    quorum: Quorum | None = None
    moving: Sequence[str] = ()

    @property
    def voters(self) -> list[Node]:
        """Those who decide who leads."""
        return [it for it in self.nodes if it.role in (Role.CONTROLLER, Role.VOTER)]

    def node(self, node_id: int) -> Node:
        """A node by its number; one that nobody knows of is fenced."""
        return next((it for it in self.nodes if it.node_id == node_id), Node(node_id=node_id, is_fenced=True))


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what to do about it."""

    what: str
    to_do: str


def findings(facts: Facts) -> list[Finding]:
    """Everything that is wrong, the worst first."""
    return [finding for find in _FINDERS for finding in find(facts)]


# One thing at a time --------------------------------------------------------------------------------------------------


def _nobody_decides(facts: Facts) -> Iterable[Finding]:
    if facts.quorum is None:
        down = [it.node_id for it in facts.nodes if it.is_unreached]
        who = f"{_nodes(down)}, which {_do(down)} not answer, and the" if down else "the"
        yield Finding(
            "nobody decides: no majority of the voters is there, or they are just electing. Partitions that have a "
            "leader go on; no other leader is elected, and nothing can be created or changed. Who leads and who is in "
            "sync is shown as it was known last",
            f"look again in a few seconds; if it stays so, start {who} nodes in controller.quorum.voters that are down",
        )


def _offline(facts: Facts) -> Iterable[Finding]:
    found = [it for it in facts.partitions if it.is_offline]
    if not found:
        return
    holders = sorted({node_id for it in found for node_id in it.isr})
    one = found[0]
    unclean = f"`minibroker topics elect-leaders {one.topic} --partition {one.number} --unclean`"
    if holders:
        why = f"only {_nodes(holders)} {_has(holders)} all the records, and {_is(holders)} not there"
        to_do = f"start {_nodes(holders)}. If {_it(holders)} lost for good, {unclean} lets another one lead, and what "
        to_do += "only the lost ones had is lost"
    else:
        why = "no replica is known to have all the records"
        to_do = f"{unclean} lets one lead with what it has; what it lacks is lost"
    yield Finding(f"{_names(found)} {_has(found)} no leader: {why}", to_do)


def _under_min_isr(facts: Facts) -> Iterable[Finding]:
    found = [it for it in facts.partitions if it.is_under_min_isr and not it.is_offline]
    if found:
        one = found[0]
        yield Finding(
            f"{_names(found)} {_has(found)} fewer replicas in sync than min.insync.replicas "
            f"({one.name}: {len(one.isr)} of {one.min_isr}): producers with acks=all are refused there",
            "bring the missing replicas back; to lower min.insync.replicas of a topic is to risk its records",
        )


def _gone_nodes(facts: Facts) -> Iterable[Finding]:
    for node in facts.nodes:
        if node.is_fenced:
            yield Finding(
                f"{node} is fenced: it was stopped, or was not heard for broker.session.timeout.ms. It leads nothing "
                f"and is in sync {'only where nobody else is' if _is_last_anywhere(facts, node) else 'nowhere'}",
                f"start it again, or find in its log why it is silent. {_if_it_is_gone(facts, node)}",
            )
        elif node.is_gone:
            yield Finding(
                f"{node} has not fetched the metadata for {(node.silent_ms or 0) / 1000:.0f} s",
                "start it again, or look whether the network lets it reach the controller",
            )


def _is_last_anywhere(facts: Facts, node: Node) -> bool:
    return any(list(it.isr) == [node.node_id] for it in facts.partitions)


def _if_it_is_gone(facts: Facts, node: Node) -> str:
    forget = f"`minibroker cluster remove-broker {node.node_id}`"
    if not any(node.node_id in it.replicas for it in facts.partitions):
        return f"It has no replicas: if it is not to come back, {forget} lets the cluster forget it"
    move = f"`minibroker topics reassign --from {node.node_id}`"
    return f"If it is lost for good, {move} puts its replicas elsewhere, and {forget} lets the cluster forget it"


def _doubles(facts: Facts) -> Iterable[Finding]:
    for node in facts.nodes:
        if node.is_doubled:
            yield Finding(
                f"two machines run as node {node.node_id}, each with a disk of its own; the one that was there first "
                "is left in peace, and the other one is not taken in",
                f"find the other one, whose log says that node {node.node_id} is registered or leads already, and give "
                "it another node.id",
            )


def _other_disks(facts: Facts) -> Iterable[Finding]:
    for node in facts.nodes:
        if node.has_another_disk:
            again = "it has its partitions again, but it" if node.is_broker else "it"
            # Of a broker the cluster knows where it is.
            where = f" --address {node.address}" if not node.is_broker and node.address else ""
            yield Finding(
                f"{node} has come back with another disk than it had as a voter: {again} does not vote, because it "
                "cannot know what it has promised",
                "bring the old disk back if you can. If it is lost, let the node vote with the new one: "
                f"`minibroker cluster remove-voter {node.node_id}`, then `minibroker cluster add-voter "
                f"{node.node_id}{where}`",
            )


def _few_voters(facts: Facts) -> Iterable[Finding]:
    voters = facts.voters
    majority = len(voters) // 2 + 1
    away = [it for it in voters if it.is_gone or it.has_another_disk]
    there = len(voters) - len(away)
    if facts.quorum is None or not away or there > majority:
        return
    others = [it.node_id for it in away if it.has_another_disk and not it.is_gone]
    first = (
        f"let {_nodes(others)} vote again as is said above," if len(others) == len(away) else "bring the others back"
    )
    yield Finding(
        f"{there} of {counted(len(voters), 'voter')} are there, and {majority} must be: if one more goes, nobody "
        "decides any more",
        f"{first} first, before anything else is restarted",
    )


def _under_replicated(facts: Facts) -> Iterable[Finding]:
    lacking: dict[int, list[Partition]] = {}
    for it in facts.partitions:
        for node_id in it.missing:
            lacking.setdefault(node_id, []).append(it)
    for node_id, found in sorted(lacking.items()):
        if facts.node(node_id).is_gone:
            yield Finding(
                f"{_names(found)} {_has(found)} no replica in sync on node {node_id}, because it is not there",
                f"nothing but to bring node {node_id} back: it then catches up by itself",
            )
        else:
            yield Finding(
                f"{_names(found)} {_has(found)} no replica in sync on node {node_id}, though it is there: it is "
                "catching up, or slower than replica.lag.time.max.ms allows",
                f"look again in a minute; if it stays so, look at the disk, the network and the log of node {node_id}",
            )


def _led_elsewhere(facts: Facts) -> Iterable[Finding]:
    # Where the preferred leader is not in sync there is nothing to do yet.
    found = [it for it in facts.partitions if it.is_led_elsewhere and it.replicas[0] in it.isr]
    if found:
        yield Finding(
            f"{_names(found)} {_is(found)} not led by {_its(found)} preferred leader, which {_is(found)} in sync: some "
            "nodes have more to do than they should",
            "wait: the controller looks for it every leader.imbalance.check.interval.seconds. Or do it now: "
            "`minibroker topics elect-leaders`",
        )


_FINDERS: Sequence[Callable[[Facts], Iterable[Finding]]] = (
    _nobody_decides,
    _offline,
    _under_min_isr,
    _gone_nodes,
    _doubles,
    _other_disks,
    _few_voters,
    _under_replicated,
    _led_elsewhere,
)


# Not wrong, but not good either ---------------------------------------------------------------------------------------


def advice(facts: Facts) -> list[str]:
    """What could be better though nothing is wrong."""
    # Whoever runs one node knows that it is the only one.
    return [] if len(facts.nodes) == 1 or facts.quorum is None else voters_advice(len(facts.voters))


def voters_advice(count: int) -> list[str]:
    """What to say of a number of voters that is no good one."""
    if count < 3:
        return [
            f"{counted(count, 'voter')}: if {'it' if count == 1 else 'one'} goes, nobody decides any more. 3 voters "
            "survive the death of one: `minibroker cluster add-voter` lets another node vote"
        ]
    if count % 2 == 0:
        return [
            f"{count} voters, of which {count // 2 + 1} must be there, survive no more deaths than {count - 1} do. Let "
            "one more vote with `minibroker cluster add-voter`, or one less with `minibroker cluster remove-voter`"
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
    """How many partitions there are, and how many of them are not as they should be."""
    partitions = facts.partitions
    return {
        "total": len(partitions),
        "offline": sum(it.is_offline for it in partitions),
        "under_min_isr": sum(it.is_under_min_isr for it in partitions),
        "under_replicated": sum(bool(it.missing) for it in partitions),
        "not_on_preferred_leader": sum(it.is_led_elsewhere for it in partitions),
        "moving": len(facts.moving),
    }
