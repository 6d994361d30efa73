"""Plans which replicas move where, for `minibroker topics reassign` and `alter`. It sends no requests.

A plan names the partitions that change, each with its new replicas. A new replica takes the position of the one that it
replaces, and the other replicas keep theirs. Each partition stays on as many racks as before, as long as those racks
have brokers. The load of a broker is the number of its replicas; their sizes do not count.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from minibroker.segments.checkpoint import TopicPartition

Replicas = Mapping[TopicPartition, Sequence[int]]
NO_NODE = -1
Racks = Mapping[int, str | None]
"""The brokers that may get replicas, each with its rack."""


class NoBrokerLeft(Exception):
    """No broker can take a replica, because every other live broker already has one of the partition."""

    def __init__(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        super().__init__(f"{name} is on {','.join(map(str, replicas))}")


class _Placement:
    """The replicas of every partition as planned so far, with the number of replicas and of leaders on each broker."""

    def __init__(self, before: Replicas, racks: Racks) -> None:
        self.racks = racks
        self.replicas = {name: tuple(it) for name, it in before.items()}
        self.loads = Counter(it for replicas in self.replicas.values() for it in replicas)
        self.leads = Counter(replicas[0] for replicas in self.replicas.values())

    def set(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        self.loads.subtract(self.replicas[name])
        self.leads.subtract(self.replicas[name][:1])
        self.replicas[name] = tuple(replicas)
        self.loads.update(replicas)
        self.leads.update(replicas[:1])

    def replacement(self, replicas: Sequence[int], old: int, brokers: Collection[int]) -> int | None:
        """The broker that replaces `old`: the least loaded one on the rack that has the fewest of these replicas."""
        left = [it for it in replicas if it != old]
        on_rack = Counter(self.racks.get(it) for it in left if it in self.racks)
        leads = self.leads if replicas[0] == old else Counter()
        candidates = [it for it in brokers if it in self.racks and it not in replicas]
        return min(candidates, key=lambda it: (on_rack[self.racks[it]], leads[it], self.loads[it], it), default=None)

    def changes(self, before: Replicas) -> dict[TopicPartition, tuple[int, ...]]:
        return {name: it for name, it in self.replicas.items() if it != tuple(before[name])}


def drain_plan(
    before: Replicas, racks: Racks, node_id: int, *, topic: str | None = None
) -> dict[TopicPartition, tuple[int, ...]]:
    """Move every replica off a node, or only the replicas of one topic."""
    placement = _Placement(before, {it: rack for it, rack in racks.items() if it != node_id})
    for name in _interleaved(before, topic):
        replicas = placement.replicas[name]
        if node_id not in replicas:
            continue
        new = placement.replacement(replicas, node_id, placement.racks)
        if new is None:
            raise NoBrokerLeft(name, replicas)
        placement.set(name, _replaced(replicas, node_id, new))
    return placement.changes(before)


def factor_plan(before: Replicas, racks: Racks, topic: str, factor: int) -> dict[TopicPartition, tuple[int, ...]]:
    """Add replicas to the partitions of a topic until each has `factor`. The preferred leaders stay the same."""
    placement = _Placement(before, racks)
    for name in _interleaved(before, topic):
        while len(replicas := placement.replicas[name]) < factor:
            new = placement.replacement(replicas, NO_NODE, racks)
            if new is None:
                raise NoBrokerLeft(name, replicas)
            placement.set(name, (*replicas, new))
    return placement.changes(before)


def spread_plan(before: Replicas, racks: Racks, *, topic: str | None = None) -> dict[TopicPartition, tuple[int, ...]]:
    """Even out the replicas and then the leaders of the live brokers, with few moves, as far as racks allow."""
    placement = _Placement(before, racks)
    names = _interleaved(before, topic)
    # Each step moves a replica, or a leader, to a broker that has at least two fewer. The sum of the squares of the
    # counts falls with each step, so the loop ends.
    for step in (_even_out_replicas, _even_out_leaders):
        while sum(step(placement, name) for name in names):
            pass
    return placement.changes(before)


def _even_out_replicas(placement: _Placement, name: TopicPartition) -> bool:
    """Move one replica of a partition to a less loaded broker, if there is one; return whether it was moved."""
    replicas = placement.replicas[name]
    live = [it for it in replicas if it in placement.racks]
    # If several brokers are equally loaded, the replica of the preferred leader is considered last.
    for old in sorted(live, key=lambda it: (-placement.loads[it], it == replicas[0], it)):
        others = Counter(placement.racks[it] for it in live if it != old)
        candidates = [
            it
            for it, rack in placement.racks.items()
            if placement.loads[old] - placement.loads[it] > 1 and others[rack] <= others[placement.racks[old]]
        ]
        new = placement.replacement(replicas, old, candidates)
        if new is not None:
            placement.set(name, _replaced(replicas, old, new))
            return True
    return False


def _even_out_leaders(placement: _Placement, name: TopicPartition) -> bool:
    """Make another replica the preferred leader, if that evens out the leaders; return whether a replica was chosen.

    The broker of that replica must lead at least two partitions fewer than the broker of the preferred leader.
    """
    replicas = placement.replicas[name]
    live = [it for it in replicas if it in placement.racks]
    first = min(live, key=lambda it: placement.leads[it], default=replicas[0])
    # A preferred leader stays preferred while its broker is down.
    if replicas[0] not in placement.racks or placement.leads[replicas[0]] - placement.leads[first] <= 1:
        return False
    placement.set(name, (first, *(it for it in replicas if it != first)))
    return True


def _replaced(replicas: Sequence[int], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if it == old else it for it in replicas)


def _interleaved(before: Replicas, topic: str | None) -> list[TopicPartition]:
    """The partitions that may change, in an order in which topics alternate, so that moves affect all topics."""
    return sorted((it for it in before if topic in (None, it.topic)), key=lambda it: (it.partition, it.topic))
