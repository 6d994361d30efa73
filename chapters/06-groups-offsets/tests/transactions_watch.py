"""What must be true of transactions, checked against the durable logs and against what clients were told.

Every log is read once, when a leader's high watermark has passed its records. So it is known which records and which
markers no failover can take back. A record says which transaction it belongs to, by the name that its client has given
to it. `groups_watch` lists the invariants.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from groups_watch import Broken, DurableGroups, Place, _refuses_in_classic, _refuses_in_consumer
from partition_watch import Committed

from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.records import OffsetCommitKey, OffsetCommitValue, decode
from minibroker.log.batch import Batch, batches
from minibroker.log.control import ControlType, control_type
from minibroker.replication.replica import Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.simulation.states import States

NO_OFFSET = -1
INPUT = "in"
"""The topic that is copied. It has any number of records, and no replicas."""
MIXED = "mixed"
"""A topic whose offsets are committed in transactions and without them. Its records are not copied."""
Reach = Callable[[str], None]


def read_batches(replica: Replica, start: int, end: int) -> Iterator[Batch]:
    """The batches between two offsets of a log."""
    offset = start
    while offset < end:
        for batch in batches(replica.log.read(offset, bytes_max=1 << 20, upto_offset=end).read()):
            yield batch
            offset = batch.header.next_offset


# What clients write ---------------------------------------------------------------------------------------------------


class Copied(NamedTuple):
    """The value of an output record: an input record, and the transaction that has copied it."""

    transaction: str
    group_id: str
    partition: int
    offset: int

    def encode(self) -> bytes:
        return f"{self.transaction}|{self.group_id}|{self.partition}|{self.offset}".encode()

    @classmethod
    def decode(cls, value: bytes) -> "Copied":
        transaction, group_id, partition, offset = value.decode().split("|")
        return cls(transaction, group_id, int(partition), int(offset))


class Note(NamedTuple):
    """The metadata of a committed offset: the transaction, where its input began, and in whose name it commits."""

    transaction: str
    start: int
    member_id: str
    epoch: int

    def text(self) -> str:
        return f"{self.transaction}|{self.start}|{self.member_id}|{self.epoch}"

    @classmethod
    def of(cls, text: str) -> "Note":
        transaction, start, member_id, epoch = text.split("|")
        return cls(transaction, int(start), member_id, int(epoch))


# Outcomes -------------------------------------------------------------------------------------------------------------


class Begun(NamedTuple):
    """A transaction that a client has begun."""

    transactional_id: str
    life: str
    outputs: Mapping[TopicPartition, list[Copied]]
    offsets: Mapping[Place, int]


class Outcomes:
    """The outcome of each transaction: what its client was told, and what the logs say."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.begun: dict[str, Begun] = {}
        self._decided: dict[str, tuple[bool, str]] = {}
        self._told: dict[str, bool] = {}
        self._asked: set[str] = set()
        self._fenced: set[str] = set()
        self._epochs: dict[int, int] = {}
        """The epoch that each producer id had at the last InitProducerId."""
        self._newest: dict[str, tuple[int, int]] = {}
        """The newest producer id and epoch of each transactional id."""

    def begin(self, transaction: str, begun: Begun) -> None:
        self.begun[transaction] = begun

    def on_asked(self, transaction: str) -> None:
        """The client asks to commit."""
        self._asked.add(transaction)

    def on_told(self, transaction: str, *, is_commit: bool) -> None:
        """The client has been told the outcome."""
        self._told[transaction] = is_commit
        decided = self._decided.get(transaction)
        if decided is not None and decided[0] != is_commit:
            raise Broken(25, f"{transaction} is {_word(decided[0])} in {decided[1]}, its client was told otherwise")

    def on_initialized(self, transactional_id: str, life: str, producer_id: int, epoch: int) -> None:
        """A producer has an epoch. Those before it are fenced: what is not decided by now never commits."""
        # A client that was paused hears late that it was initialised. By then a newer one may have fenced it.
        if (producer_id, epoch) < self._newest.get(transactional_id, (-1, -1)):
            return
        self._newest[transactional_id] = producer_id, epoch
        self._epochs[producer_id] = max(epoch, self._epochs.get(producer_id, 0))
        for name, it in self.begun.items():
            if it.transactional_id == transactional_id and name not in self._decided and name not in self._fenced:
                self._fenced.add(name)
                if it.life != life:
                    self._reach("transaction of a fenced producer")

    def check_epoch(self, where: str, producer_id: int, epoch: int) -> None:
        """A record of a producer has become durable."""
        if epoch < self._epochs.get(producer_id, 0):
            facts = f"a record of producer {producer_id} in epoch {epoch}"
            raise Broken(28, f"{where} has {facts}, which was fenced by epoch {self._epochs[producer_id]}")

    def decide(self, transaction: str, where: str, *, is_commit: bool) -> None:
        """A marker after a record of the transaction is durable."""
        known, place = self._decided.setdefault(transaction, (is_commit, where))
        if known != is_commit:
            raise Broken(25, f"{transaction} is {_word(known)} in {place} and {_word(is_commit)} in {where}")
        if self._told.get(transaction, is_commit) != is_commit:
            raise Broken(25, f"{transaction} is {_word(is_commit)} in {where}, its client was told otherwise")
        if is_commit and transaction not in self._asked:
            raise Broken(25, f"{transaction} commits in {where}, and its client has not asked for that")
        if is_commit and transaction in self._fenced:
            raise Broken(28, f"{transaction} commits in {where}, though its producer was fenced before")

    def committed(self) -> list[str]:
        """The transactions that have committed, as a log or a client says."""
        told = [name for name, is_commit in self._told.items() if is_commit]
        return [*told, *(name for name, it in self._decided.items() if it[0] and name not in self._told)]


def _word(is_commit: bool) -> str:
    return "committed" if is_commit else "aborted"


# Logs -----------------------------------------------------------------------------------------------------------------


class DurableLog:
    """One partition, as far as no failover can change it."""

    def __init__(self, name: TopicPartition, outcomes: Outcomes) -> None:
        self.name = name
        self.end = 0
        self.committed = Committed()
        self._outcomes = outcomes
        self._open: dict[int, int] = {}
        """The first offset of each open transaction, by producer."""

    def on_durable(self, replica: Replica) -> None:
        """A leader's high watermark has moved."""
        for batch in read_batches(replica, self.end, replica.high_watermark):
            self.end = batch.header.next_offset
            self.take_batch(batch)

    def take_batch(self, batch: Batch) -> None:
        """A batch is durable."""
        header = batch.header
        if header.is_control:
            record = next(iter(batch.records()))
            self._open.pop(header.producer_id, None)
            self.on_marker(header.producer_id, is_commit=control_type(record) == ControlType.COMMIT)
        else:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)
                self._outcomes.check_epoch(self.name.directory, header.producer_id, header.producer_epoch)
            self.on_records(batch)

    def on_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """A transaction has ended."""

    def on_records(self, batch: Batch) -> None:
        """A batch of records."""

    def first_undecided(self, upto: int) -> int | None:
        """The first offset before `upto` whose outcome is open, or None."""
        return min((it for it in self._open.values() if it < upto), default=None)

    def undecided(self) -> str:
        """Which transactions are open."""
        return f"{self.name.directory} has open transactions: {self._open}" if self._open else ""


class DurableOutput(DurableLog):
    """A partition with copied records."""

    def __init__(self, name: TopicPartition, outcomes: Outcomes, reach: Reach) -> None:
        super().__init__(name, outcomes)
        self._reach = reach
        self._pending: dict[int, list[tuple[int, Copied]]] = {}
        self.values: dict[int, Copied] = {}
        """The committed records by their offsets."""

    def on_records(self, batch: Batch) -> None:
        found = [(it.offset, Copied.decode(it.value or b"")) for it in batch.records()]
        pending = self._pending.setdefault(batch.header.producer_id, [])
        pending += found
        if pending[0][1].transaction != found[0][1].transaction:
            raise Broken(25, f"{self.name.directory}: {found[0]} comes before the marker of {pending[0]}")

    def on_marker(self, producer_id: int, *, is_commit: bool) -> None:
        found = self._pending.pop(producer_id, [])
        for offset, value in found:
            self._outcomes.decide(value.transaction, self.name.directory, is_commit=is_commit)
            if is_commit:
                self.values[offset] = value
        if found:
            self._reach("commit marker" if is_commit else "abort marker")

    def on_read(self, start: int, end: int, found: Mapping[int, Copied]) -> None:
        """A reader of committed records has read from one offset to another."""
        if end > self.end:
            raise Broken(9, f"{self.name.directory} is read to {end}, and only {self.end} is durable")
        expected = {offset: self.values[offset] for offset in range(start, end) if offset in self.values}
        if dict(found) != expected:
            wrong = sorted(set(found.items()) ^ set(expected.items()))
            raise Broken(9, f"{self.name.directory}, from {start} to {end}: {wrong[:4]} are read or missed wrongly")


class Offset(NamedTuple):
    """A committed offset."""

    record_offset: int
    offset: int
    note: Note


class DurableOffsets(DurableLog, DurableGroups):
    """The partition of `__consumer_offsets`: groups, and offsets that may be part of transactions.

    The history of a place has all its offsets. A fetch must return one that was current while it was under way.
    """

    def __init__(self, name: TopicPartition, outcomes: Outcomes, shard: Any, states: States) -> None:
        DurableGroups.__init__(self, shard, states)
        DurableLog.__init__(self, name, outcomes)
        self._pending: dict[int, dict[Place, Offset]] = {}
        self.history: dict[Place, list[Offset]] = {}

    def on_records(self, batch: Batch) -> None:
        for it in batch.records():
            assert it.key is not None
            record = decode(it.key, it.value)
            assert record is not None
            if isinstance(record.key, OffsetCommitKey):
                self._on_offset(batch, record.key, record.value, it.offset)
            else:
                self.take_record(record, it.offset)

    def take_record(self, record: Any, offset: int) -> None:
        """A record of a group."""
        end = self.end
        DurableGroups.take(self, record, offset)
        self.end = end

    def _on_offset(self, batch: Batch, key: OffsetCommitKey, value: object, record_offset: int) -> None:
        assert isinstance(value, OffsetCommitValue), f"nothing deletes offsets here: {key}"
        place, note = (key.group_id, key.topic, key.partition), Note.of(value.metadata)
        self._check_member(key, value, note)
        found = Offset(record_offset, value.offset, note)
        if batch.header.is_transactional:
            self._pending.setdefault(batch.header.producer_id, {})[place] = found
        else:
            self._put(place, found)

    def _check_member(self, key: OffsetCommitKey, value: OffsetCommitValue, note: Note) -> None:
        if note.epoch < 0:
            return
        group, who = self.group(key.group_id), note
        if isinstance(group, ConsumerGroup):
            why = _refuses_in_consumer(group, who, value.topic_id, key.partition)  # type: ignore[arg-type]
        else:
            why = _refuses_in_classic(group, who, key.topic, key.partition)  # type: ignore[arg-type]
        if why:
            raise Broken(14, f"{value.offset} of {key}, {note}, is accepted, but {why}")

    def on_marker(self, producer_id: int, *, is_commit: bool) -> None:
        for place, found in self._pending.pop(producer_id, {}).items():
            self._outcomes.decide(found.note.transaction, self.name.directory, is_commit=is_commit)
            self._states.reach("pending offsets moved" if is_commit else "pending offsets dropped")
            if is_commit:
                self._put(place, found)

    def _put(self, place: Place, found: Offset) -> None:
        history = self.history.setdefault(place, [])
        last = history[-1] if history else Offset(-1, 0, Note("", 0, "", -1))
        if found.record_offset < last.record_offset:
            self._states.reach("pending offset is older than a plain one")
            return
        if place[1] == INPUT and found.offset < last.offset:
            raise Broken(8, f"{place} goes back from {last} to {found}")
        if place[1] == INPUT and found.note.start != last.offset:
            raise Broken(27, f"{place}: {found} does not follow {last}")
        history.append(found)

    # What clients are told --------------------------------------------------------------------------------------------

    def floor(self, place: Place) -> int:
        """How many offsets a place has had, for a fetch that begins now."""
        return len(self.history.get(place, ()))

    def floors(self) -> dict[Place, int]:
        return {place: len(history) for place, history in self.history.items()}

    def on_fetched(self, place: Place, offset: int, floor: int) -> None:
        """A client learns an offset, which was current at some time since it asked."""
        history = self.history.get(place, [])
        current = [it.offset for it in history[max(floor - 1, 0) :]] + ([NO_OFFSET] if not floor else [])
        if offset not in current:
            raise Broken(8, f"a fetch of {place} has {offset}, it was {current} since the client asked")

    def offset_of(self, place: Place) -> int:
        """The committed offset."""
        history = self.history.get(place)
        return history[-1].offset if history else 0


# The end --------------------------------------------------------------------------------------------------------------


def check_copies(outputs: Mapping[TopicPartition, DurableOutput], offsets: DurableOffsets, outcomes: Outcomes) -> None:
    """All inputs before the committed offsets are in the output, once and in order; a transaction is whole."""
    by_transaction: dict[str, set[tuple[TopicPartition, Copied]]] = {}
    seen: dict[tuple[str, int, int], str] = {}
    last: dict[tuple[str, int, TopicPartition], int] = {}
    for name, output in outputs.items():
        for offset, it in sorted(output.values.items()):
            by_transaction.setdefault(it.transaction, set()).add((name, it))
            source = (it.group_id, it.partition, it.offset)
            if source in seen:
                raise Broken(27, f"{source} is in the output of {seen[source]} and again at {offset} of {name}")
            seen[source] = it.transaction
            order = (it.group_id, it.partition, name)
            if last.get(order, -1) >= it.offset:
                raise Broken(27, f"{it} at {offset} of {name.directory} comes after {last[order]}")
            last[order] = it.offset
    for place in [it for it in offsets.history if it[1] == INPUT]:
        wanted = offsets.offset_of(place)
        found = sum(1 for group_id, partition, _offset in seen if (group_id, partition) == (place[0], place[2]))
        if found != wanted:
            raise Broken(27, f"{place}: the committed offset is {wanted}, and {found} inputs are in the output")
    for transaction in outcomes.committed():
        begun = outcomes.begun[transaction]
        expected = {(partition, it) for partition, values in begun.outputs.items() for it in values}
        if by_transaction.get(transaction, set()) != expected:
            raise Broken(25, f"{transaction} has committed, but it has not all its records")
        for place, wanted in begun.offsets.items():
            if offsets.offset_of(place) < wanted:
                raise Broken(
                    25, f"{transaction} has committed, but {place} is at {offsets.offset_of(place)}, not {wanted}"
                )
