"""A zombie, and an EndTxn that arrives late: the decisions of a transaction coordinator, without a broker.

python chapters/06-groups-offsets/examples/late_end.py
"""

from itertools import count

from minibroker.groups.pending import Producer
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions import core
from minibroker.transactions.errors import TransactionRefused
from minibroker.transactions.ids import Transaction

NAMES = frozenset({TopicPartition("copies", 0)})


class Coordinator:
    """The state of one transactional id, and what each request does to it."""

    def __init__(self, version: int) -> None:
        self._ids = count(1000)
        self._version = version
        self.state: Transaction | None = None

    def init(self) -> Producer:
        """InitProducerId. If a transaction is open, it is aborted, and the request is decided again."""
        for _attempt in range(2):
            self.state = core.initialized(self.state, None, timeout_ms=60_000, new_id=lambda: next(self._ids), now_ms=0)
            if not self.state.partitions:
                break
            print(f"    the open transaction is aborted: {self.state.state.label}, epoch {self.state.producer_epoch}")
            self.complete()
        return self.state.producer

    def add(self, who: Producer) -> None:
        """The partition is added to the transaction."""
        self.state = core.added(self.state, who, NAMES, client_version=self._version, now_ms=0)

    def end(self, who: Producer, *, is_commit: bool = True) -> str:
        """EndTxn. Returns the new state, or the error."""
        try:
            self.state = core.ended(
                self.state,
                who,
                is_commit=is_commit,
                client_version=self._version,
                new_id=lambda: next(self._ids),
                now_ms=0,
            )
        except TransactionRefused as refused:
            return refused.code.name
        return self.state.state.label

    def complete(self) -> None:
        """All markers are written."""
        assert self.state is not None
        self.state = core.completed(self.state, now_ms=0)


def zombie() -> None:
    """A copier pauses in the middle of a transaction, and another one takes its place."""
    print("a zombie:")
    coordinator = Coordinator(version=0)
    old = coordinator.init()
    print(f"  copier a: producer {old.id}, epoch {old.epoch}; begins a transaction, and pauses")
    coordinator.add(old)
    print("  copier b starts with the same transactional id:")
    new = coordinator.init()
    print(f"    producer {new.id}, epoch {new.epoch}")
    print(f"  copier a wakes up, and commits: {coordinator.end(old)}")


def late_end(version: int) -> None:
    """The first copy of an EndTxn is delayed, the second one ends the transaction, and the next transaction begins."""
    print(f"a late EndTxn, transaction version {version}:")
    coordinator = Coordinator(version)
    first = coordinator.init()
    coordinator.add(first)
    ended = coordinator.end(first)
    print(f"  transaction 1 has epoch {first.epoch}; its EndTxn is sent twice, and one copy arrives: {ended}")
    coordinator.complete()
    assert coordinator.state is not None
    second = coordinator.state.producer
    coordinator.add(second)
    print(f"  transaction 2 has epoch {second.epoch}, and half of its records are written")
    print(f"  the other copy arrives: {coordinator.end(first)}")


if __name__ == "__main__":
    zombie()
    late_end(version=1)
    late_end(version=2)
