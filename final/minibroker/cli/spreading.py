"""Plans which replicas go where, for `minibroker topics reassign --from` and `--spread`. Nothing here asks anybody.

A plan names the partitions that change, each with its new replicas. A replica that comes takes the place of the one
that goes, so all others keep theirs; and each partition stands on as many racks as before, where brokers are left on
them. Replicas are counted, not bytes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from minibroker.segments.checkpoint import TopicPartition

Replicas = Mapping[TopicPartition, Sequence[int]]
Racks = Mapping[int, str | None]
"""The brokers that may get replicas, and where each stands."""


class NowhereToGo(Exception):
    """A replica that is to go, and no broker that could take it."""

    def __init__(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        super().__init__(f"{name} is on {','.join(map(str, replicas))}")


class _Board:
    """Where everything is to be; who has how much, and leads how much, follows from it."""

    def __init__(self, before: Replicas, racks: Racks) -> None:
        self.racks = racks
        self.now = {name: tuple(it) for name, it in before.items()}
        self.loads = Counter(it for replicas in self.now.values() for it in replicas)
        self.leads = Counter(replicas[0] for replicas in self.now.values())

    def put(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        self.loads.subtract(self.now[name])
        self.leads.subtract(self.now[name][:1])
        self.now[name] = tuple(replicas)
        self.loads.update(replicas)
        self.leads.update(replicas[:1])

    def best(self, replicas: Sequence[int], goes: int, brokers: Collection[int]) -> int | None:
        """Who takes the place of one that goes: on a rack that has least of it, then who has least to do."""
        left = [it for it in replicas if it != goes]
        on_rack = Counter(self.racks.get(it) for it in left if it in self.racks)
        leads = self.leads if replicas[0] == goes else Counter()
        candidates = [it for it in brokers if it in self.racks and it not in replicas]
        return min(candidates, key=lambda it: (on_rack[self.racks[it]], leads[it], self.loads[it], it), default=None)

    def plan(self, before: Replicas) -> dict[TopicPartition, tuple[int, ...]]:
        return {name: it for name, it in self.now.items() if it != tuple(before[name])}


def drained(
    before: Replicas, racks: Racks, node_id: int, *, topic: str | None = None
) -> dict[TopicPartition, tuple[int, ...]]:
    """Move every replica off a node, or those of one topic."""
    board = _Board(before, {it: rack for it, rack in racks.items() if it != node_id})
    for name in _in_turns(before, topic):
        replicas = board.now[name]
        if node_id not in replicas:
            continue
        taker = board.best(replicas, node_id, board.racks)
        if taker is None:
            raise NowhereToGo(name, replicas)
        board.put(name, _replaced(replicas, node_id, taker))
    return board.plan(before)


def spread(before: Replicas, racks: Racks, *, topic: str | None = None) -> dict[TopicPartition, tuple[int, ...]]:
    """Let each broker have as many replicas as the next, or one more, with few moves; and lead as many."""
    board = _Board(before, racks)
    names = _in_turns(before, topic)
    # Each step takes from who has at least two more: the sum of the squares falls, so there is a last one.
    for step in (_shared, _led):
        while sum(step(board, name) for name in names):
            pass
    return board.plan(before)


def _shared(board: _Board, name: TopicPartition) -> bool:
    """Give one replica of a partition to who has fewest, if that evens anything out; return whether it did."""
    replicas = board.now[name]
    live = [it for it in replicas if it in board.racks]
    # Who leads stays, where another one has as much.
    for goes in sorted(live, key=lambda it: (-board.loads[it], it == replicas[0], it)):
        others = Counter(board.racks[it] for it in live if it != goes)
        takers = [
            it
            for it, rack in board.racks.items()
            if board.loads[goes] - board.loads[it] > 1 and others[rack] <= others[board.racks[goes]]
        ]
        taker = board.best(replicas, goes, takers)
        if taker is not None:
            board.put(name, _replaced(replicas, goes, taker))
            return True
    return False


def _led(board: _Board, name: TopicPartition) -> bool:
    """Let the replica come first that comes first least often, if that evens anything out; return whether it did."""
    replicas = board.now[name]
    first = min((it for it in replicas if it in board.racks), key=lambda it: board.leads[it], default=replicas[0])
    # One that is not there at the moment keeps its place.
    if replicas[0] not in board.racks or board.leads[replicas[0]] - board.leads[first] <= 1:
        return False
    board.put(name, (first, *(it for it in replicas if it != first)))
    return True


def _replaced(replicas: Sequence[int], goes: int, comes: int) -> tuple[int, ...]:
    return tuple(comes if it == goes else it for it in replicas)


def _in_turns(before: Replicas, topic: str | None) -> list[TopicPartition]:
    """The partitions that may change, the topics taking turns: what moves is not all of one."""
    return sorted((it for it in before if topic in (None, it.topic)), key=lambda it: (it.partition, it.topic))
