"""A small model of a broker and a network, to test the accumulator: which batches are written, and in which order.

The broker has Kafka's rules for the sequences of one partition. The network keeps the order on each connection, may
break a connection at any point, and may deliver requests of a broken connection much later.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.client.errors import ConnectionLost
from minibroker.clients.accumulator import Accumulator, Answer, ProducerConfig, Send
from minibroker.clients.batching import Delivery, ProducerBatch
from minibroker.log.batch import Batch
from minibroker.wire.codes import ErrorCode

REMEMBERED = 5


class Copy(NamedTuple):
    """A batch as it was when it was sent: later numbering must not change a batch in flight."""

    topic: str
    partition: int
    data: bytes


@dataclass
class PartitionLog:
    """One partition of a broker."""

    values: list[int] = field(default_factory=list)
    epoch: int = -1
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first and last sequence, base offset

    def append(self, copy: Copy) -> Answer:
        batch = Batch(copy.data)
        batch.check_crc()
        header = batch.header
        if header.producer_id < 0:
            return self._write(batch)
        first, last = header.base_sequence, header.base_sequence + header.record_count - 1
        if header.producer_epoch < self.epoch:
            return Answer(ErrorCode.INVALID_PRODUCER_EPOCH)
        for known_first, known_last, base_offset in self.batches:
            if header.producer_epoch == self.epoch and (first, last) == (known_first, known_last):
                return Answer(ErrorCode.NONE, base_offset)
        if header.producer_epoch > self.epoch and self.epoch >= 0 and first != 0:
            return Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        # A broker without state of a producer accepts any sequence number.
        if header.producer_epoch == self.epoch and self.batches and first != self.batches[-1][1] + 1:
            return Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if header.producer_epoch > self.epoch:
            self.epoch, self.batches = header.producer_epoch, []
        answer = self._write(batch)
        self.batches = [*self.batches, (first, last, answer.base_offset)][-REMEMBERED:]
        return answer

    def _write(self, batch: Batch) -> Answer:
        base_offset = len(self.values)
        self.values += [int(record.value or b"0") for record in batch.records()]
        return Answer(ErrorCode.NONE, base_offset)


@dataclass
class Request:
    """A request under way."""

    send: Send
    copies: list[Copy]
    answers: dict[tuple[str, int], Answer] | None = None


class World:
    """A producer, two nodes that lead one partition each and hold both, and the network between them."""

    def __init__(self, config: ProducerConfig) -> None:
        self.config = config
        self.accumulator = Accumulator(config)
        self.now_ms = 0.0
        self.logs: dict[tuple[str, int], PartitionLog] = {}
        self.leaders = {0: 0, 1: 1}
        self.connections: dict[int, list[Request]] = {0: [], 1: []}
        self.broken: list[list[Request]] = []
        self.promises: list[tuple[int, int, float, Delivery]] = []
        self.is_known = True

    # What can happen ------------------------------------------------------------------------------------------------

    def produce(self, partition: int) -> None:
        number = len(self.promises)
        delivery = self.accumulator.append(
            "t", partition, key=None, value=b"%d" % number, timestamp=number, now_ms=self.now_ms
        )
        self.promises.append((number, partition, self.now_ms + self.config.delivery_timeout_ms, delivery))

    def drain(self) -> None:
        if self.accumulator.needs_producer_id:
            self.accumulator.on_producer_id(producer_id=7, producer_epoch=0)
        for send in self.accumulator.drain(self.now_ms, lambda _topic, partition: self._leader(partition)).sends:
            copies = [self._copy(batch) for batch in send.batches]
            self.connections[send.node_id].append(Request(send, copies))
            assert len(self.connections[send.node_id]) <= self.config.max_in_flight

    def _leader(self, partition: int) -> int | None:
        return self.leaders[partition] if self.is_known else None

    def _copy(self, batch: ProducerBatch) -> Copy:
        return Copy(batch.topic, batch.partition, bytes(batch.encode(self.config.compression)))

    def carry_out(self, node_id: int, failure: ErrorCode = ErrorCode.NONE, *, is_written: bool = True) -> None:
        """The node handles its oldest open request."""
        waiting = [request for request in self.connections[node_id] if request.answers is None]
        if waiting:
            self._work(waiting[0], failure, is_written)

    def _work(self, request: Request, failure: ErrorCode, is_written: bool) -> None:
        request.answers = {}
        for copy in request.copies:
            key = copy.topic, copy.partition
            answer = self.logs.setdefault(key, PartitionLog()).append(copy) if is_written else Answer(failure)
            request.answers[key] = Answer(failure) if failure and answer.code == ErrorCode.NONE else answer

    def answer(self, node_id: int) -> None:
        """The oldest answer arrives, if there is one."""
        requests = self.connections[node_id]
        if requests and requests[0].answers is not None:
            request = requests.pop(0)
            answers = request.answers or {}
            self.accumulator.on_answers(
                request.send, lambda batch: answers[batch.topic, batch.partition], now_ms=self.now_ms
            )

    def disconnect(self, node_id: int, *, arrives: bool) -> None:
        """The connection breaks; requests that were sent may still arrive."""
        requests, self.connections[node_id] = self.connections[node_id], []
        for request in requests:
            self.accumulator.on_lost(request.send, ConnectionLost("broken"), now_ms=self.now_ms)
        if arrives:
            self.broken.append([request for request in requests if request.answers is None])

    def arrive_late(self) -> None:
        """A node handles a request of a connection that its client has given up."""
        for requests in self.broken:
            if requests:
                self._work(requests.pop(0), ErrorCode.NONE, True)
                return

    def move(self, partition: int) -> None:
        self.leaders[partition] = 1 - self.leaders[partition]

    def wait(self, ms: float) -> None:
        self.now_ms += ms
        # A sender wakes for deadlines.
        self.drain()
        self.check_deadlines()

    def settle(self) -> None:
        """From now on nothing fails: every open record must be delivered without waiting for a deadline."""
        self.is_known = True
        for _ in range(400):
            if self.accumulator.is_idle:
                return
            self.accumulator.flush()
            self.drain()
            for node_id in self.connections:
                self.carry_out(node_id)
                self.answer(node_id)
            self.now_ms += 20
        raise AssertionError("the producer does not come to an end")

    # What must hold -------------------------------------------------------------------------------------------------

    def check_deadlines(self) -> None:
        for number, _partition, deadline_ms, delivery in self.promises:
            assert delivery.is_done or self.now_ms < deadline_ms, f"record {number} has no fate at {self.now_ms}"

    def check_order(self) -> None:
        for key, log in self.logs.items():
            assert log.values == sorted(set(log.values)), f"{key}: {log.values}"

    def check_promises(self) -> None:
        for number, partition, _deadline_ms, delivery in self.promises:
            if delivery.is_done and delivery.error is None:
                values = self.logs["t", partition].values
                assert number in values, f"record {number} was acknowledged and is not there"
                assert delivery.offset in (-1, values.index(number))
