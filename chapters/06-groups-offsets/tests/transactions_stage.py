"""A transaction coordinator on a list of records, for tests: a test sends requests, writes markers and moves the time.

`Stage` stands for the driver. It applies the records of each step at once, and answers at once, as if every record were
replicated immediately. `Stage.failover` loads a new coordinator from the records.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from test_groups_offsets import IMAGE

from minibroker.groups.pending import Producer
from minibroker.metadata.configs import NodeConfig
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.errors import TransactionRefused
from minibroker.transactions.ids import Transaction
from minibroker.transactions.keys import TransactionSettings
from minibroker.transactions.markers import TRANSACTION_VERSION_2
from minibroker.transactions.outcomes import Markers
from minibroker.transactions.records import TransactionRecord, decode, encode
from minibroker.transactions.shard import PARKED_MS_MAX, TransactionShard, TransactionStep
from minibroker.transactions.tables.end_txn import EndTxnRequest
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
ID = "copier"
V1, V2 = 3, 5  # versions of EndTxn: before and after KIP-890

Answer = Producer | ErrorCode | None


class Stage:
    """A coordinator and its log."""

    def __init__(self, **changes: Any) -> None:
        self.time_ms = 1_000_000
        self.settings = replace(TransactionSettings.of(NodeConfig()), **changes)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.refuses: ErrorCode | None = None
        self.answers: dict[str, Answer] = {}
        self.has_ids = True
        self._ids = count(1000)
        self._tickets = count(1)
        self.shard = self._new_shard()

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(settings=lambda: self.settings, new_producer_id=self._new_id, image=IMAGE)

    def _new_id(self) -> int:
        if not self.has_ids:
            raise TransactionRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return next(self._ids)

    # The driver -------------------------------------------------------------------------------------------------------

    def perform(self, steps: Iterable[TransactionStep]) -> None:
        """Append and apply the records of each step, and note the answers."""
        for it in steps:
            step = it
            if step.records and self.refuses is not None:
                step = step.refused(self.refuses)
            for record in step.records:
                self._append(record)
            for ticket, response in step.replies:
                self.answers[str(ticket)] = _plain(response)

    def _append(self, record: TransactionRecord) -> None:
        self.shard.apply(record, len(self.log), self.time_ms)
        self.log.append(encode(record))

    def put(self, state: Transaction, transactional_id: str = ID) -> None:
        """Give an id a state."""
        self._append(TransactionRecord(transactional_id, state))

    def failover(self) -> None:
        """Replace the coordinator. The new one knows only the log."""
        self.shard = self._new_shard()
        for offset, (key, value) in enumerate(self.log):
            record = decode(key, value)
            assert record is not None
            self.shard.replay(record, offset)
        self.shard.on_loaded(self.time_ms)

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.time_ms += ms
        self.perform(self.shard.on_time(self.time_ms))

    # Requests ---------------------------------------------------------------------------------------------------------

    def _ask(self, step: Any) -> str:
        ticket = f"request {next(self._tickets)}"
        self.answers[ticket] = None
        self.perform([step(ticket)])
        return ticket

    def init(self, asked: Producer | None = None, *, timeout_ms: int = 60_000, transactional_id: str = ID) -> Answer:
        """Send InitProducerId."""
        who = asked or Producer(-1, -1)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=who.id,
            producer_epoch=who.epoch,
        )
        return self.answers[self._ask(lambda ticket: self.shard.on_init(ticket, request, self.time_ms))]

    def begin(self, **options: Any) -> Producer:
        """Send InitProducerId, which must succeed."""
        found = self.init(**options)
        assert isinstance(found, Producer), found
        return found

    def add(
        self, who: Producer, *names: TopicPartition, version: int = V1, parked_ms_max: int = PARKED_MS_MAX
    ) -> Answer:
        """Send AddPartitionsToTxn."""
        client_version = TRANSACTION_VERSION_2 if version >= V2 else 0
        return self.answers[
            self._ask(
                lambda ticket: self.shard.on_add(
                    ticket,
                    ID,
                    who,
                    frozenset(names),
                    client_version=client_version,
                    now_ms=self.time_ms,
                    parked_ms_max=parked_ms_max,
                )
            )
        ]

    def verify(self, who: Producer, *names: TopicPartition) -> dict[TopicPartition, ErrorCode] | Answer:
        """Ask whether partitions are in the transaction."""
        found: dict[TopicPartition, ErrorCode] = {}

        def answer(codes: dict[TopicPartition, ErrorCode]) -> Any:
            found.update(codes)

        ticket = self._ask(lambda ticket: self.shard.on_verify(ticket, ID, who, names, answer))
        return found or self.answers[ticket]

    def end(self, who: Producer, *, is_commit: bool = True, version: int = V1) -> Answer:
        """Send EndTxn. The answer is the producer of the next transaction."""
        return self.answers[self.send_end(who, is_commit=is_commit, version=version)]

    def send_end(self, who: Producer, *, is_commit: bool = True, version: int = V1) -> str:
        """Send EndTxn; return the name of its answer."""
        request = EndTxnRequest(transactional_id=ID, producer_id=who.id, producer_epoch=who.epoch, committed=is_commit)
        return self._ask(lambda ticket: self.shard.on_end(ticket, request, version, self.time_ms))

    # Markers ----------------------------------------------------------------------------------------------------------

    def orders(self) -> list[Markers]:
        """The markers that the coordinator orders now. All records are replicated."""
        return self.shard.transactions.on_replicated(len(self.log))

    def mark(self, *names: TopicPartition) -> None:
        """Markers are written."""
        self.perform(self.shard.on_marked(ID, names, self.time_ms))

    def finish(self) -> None:
        """Write all markers."""
        for order in self.orders():
            self.mark(*order.partitions)

    @property
    def state(self) -> Transaction:
        """The state of the id."""
        found = self.shard.transactions.get(ID)
        assert found is not None
        return found

    @property
    def label(self) -> str:
        """The state's name."""
        return self.state.state.label


def _plain(response: Any) -> Answer:
    if isinstance(response, ErrorCode) or response is None:
        return response
    assert response.error_code == ErrorCode.NONE
    return Producer(response.producer_id, response.producer_epoch)
