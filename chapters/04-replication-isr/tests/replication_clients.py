"""The clients of the simulated cluster: producers that retry until they have an answer, and consumers."""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from replication_messages import AskEpoch, Consume, Consumed, Produce, Produced, ToldEpoch
from replication_nodes import batch_of

from minibroker.log.batch import batches
from minibroker.partitions.partition import ACKS_ALL
from minibroker.simulation.checker import Violation
from minibroker.simulation.history import Acked, Invoked, Promise, Read, Unknown, Value
from minibroker.simulation.links import Link
from minibroker.simulation.process import Process
from minibroker.wire.codes import ErrorCode

if TYPE_CHECKING:
    from partition_watch import PartitionWatch

REQUEST_TIMEOUT_MS = 1800
IN_FLIGHT_MAX = 5
RETRIES_MAX = 4  # after so many refusals of its first batch a producer gives up


class Outgoing:
    """A batch that is not acked yet."""

    def __init__(self, values: list[Value], number: int, batch: bytes) -> None:
        self.values = values
        self.number = number
        self.batch = batch
        self.refusals = 0

    @property
    def label(self) -> str:
        last = f"–{self.values[-1].sequence}" if len(self.values) > 1 else ""
        return f"{self.values[0]}{last}"


class Producer:
    """Sends several batches at a time, and retries each until it has an answer."""

    def __init__(self, world: "PartitionWatch", name: str, *, acks: int, is_idempotent: bool) -> None:
        self.world = world
        self.base_name = name
        self.acks = acks
        self.is_idempotent = is_idempotent
        self.chance = world.chance(name)
        self.gap_ms = self.chance.choice((80, 150, 250))
        self.in_flight_max = self.chance.randint(1, IN_FLIGHT_MAX) if is_idempotent else 1
        self.process = Process(world.scheduler, world.trace, name)
        self.process.start()
        self.lives = 0
        self.link: Link | None = None
        self.is_reconnecting = False
        self._begin()
        self._schedule()

    def _begin(self) -> None:
        """Become a new producer that no node knows."""
        self.lives += 1
        self.name = self.base_name if self.lives == 1 else f"{self.base_name}.{self.lives}"
        self.producer_id = next(self.world.producer_ids) if self.is_idempotent else -1
        self.world.promises[self.name] = Promise(is_durable=self.acks == ACKS_ALL, is_idempotent=self.is_idempotent)
        self.window: deque[Outgoing] = deque()
        self.sequence = 0
        self.heard_ms = 0

    # Sending ----------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self.process.after(1 + int(self.chance.random() * 2 * self.gap_ms), self._produce)

    def _produce(self) -> None:
        if self.world.is_producing and len(self.window) < self.in_flight_max:
            self._send(self._new_batch())
        self._check_timeout()
        self._schedule()

    def _new_batch(self) -> Outgoing:
        count = self.chance.choice((1, 1, 2, 3, 5))
        values = [Value(self.name, self.sequence + index) for index in range(count)]
        sequence = self.sequence if self.is_idempotent else -1
        texts = [str(value).encode() for value in values]
        batch = bytes(batch_of(*texts, producer_id=self.producer_id, sequence=sequence))
        outgoing = Outgoing(values, self.sequence, batch)
        self.sequence += count
        for value in values:
            self.world.history.record(Invoked(self.world.scheduler.now_ms, value))
        if not self.window:
            self.heard_ms = self.world.scheduler.now_ms
        self.window.append(outgoing)
        return outgoing

    def _send(self, outgoing: Outgoing) -> None:
        if self.link is not None and self.link.is_open:
            self.link.send(Produce(outgoing.label, outgoing.number, outgoing.batch, self.acks))
        else:
            self._reconnect()

    def _reconnect(self) -> None:
        if not self.is_reconnecting:
            self.is_reconnecting = True
            self.process.after(20 + int(self.chance.random() * 150), self._connect)

    def _connect(self) -> None:
        self.is_reconnecting = False
        node = self.world.guess_leader(self.chance)
        if node is None:
            self._reconnect()
            return
        self.link = Link(
            self.world.network,
            self.process,
            node.process,
            serve=node.serve,
            on_answer=self._on_answer,
            on_broken=self._on_broken,
        )
        node.links.append(self.link)
        self.heard_ms = self.world.scheduler.now_ms
        for outgoing in list(self.window):
            self._send(outgoing)

    def _check_timeout(self) -> None:
        if self.window and self.world.scheduler.now_ms - self.heard_ms > REQUEST_TIMEOUT_MS:
            self._start_over()

    # Answers ----------------------------------------------------------------------------------------------------------

    def _on_answer(self, answer: Produced) -> None:
        self.heard_ms = self.world.scheduler.now_ms
        outgoing = next((it for it in self.window if it.number == answer.number), None)
        if outgoing is None:
            return
        if answer.code is ErrorCode.NONE:
            self._on_acked(outgoing, answer)
        else:
            self._on_refused(outgoing, answer.code)

    def _on_acked(self, outgoing: Outgoing, answer: Produced) -> None:
        self.window.remove(outgoing)
        for index, value in enumerate(outgoing.values):
            self.world.history.record(Acked(self.world.scheduler.now_ms, value, answer.base_offset + index))

    def _on_refused(self, outgoing: Outgoing, code: ErrorCode) -> None:
        # The sequence of the first batch does not follow what the leader knows. After some retries the producer ends.
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and outgoing is self.window[0]:
            outgoing.refusals += 1
            if outgoing.refusals >= RETRIES_MAX:
                self._give_up()
                return
        self._start_over()

    def _on_broken(self) -> None:
        if self.link is None or not self.link.is_open:
            self._doubt()

    def _start_over(self) -> None:
        """Send all batches without an ack again, on another connection."""
        if self.link is not None:
            self.link.break_off()
        self._doubt()

    def _doubt(self) -> None:
        if self.acks != ACKS_ALL:
            # This producer ignores the answer.
            self._give_up()
        if self.window:
            self._reconnect()

    def forsake(self) -> None:
        """A batch was written, not acked, and deleted. A retry writes it again, as in Kafka."""
        self.world.promises[self.name] = Promise(is_durable=True, is_idempotent=False)
        self._give_up()

    def _give_up(self) -> None:
        for outgoing in self.window:
            for value in outgoing.values:
                self.world.history.record(Unknown(self.world.scheduler.now_ms, value))
        self.window.clear()
        if self.is_idempotent:
            self.world.states.reach("producer gave up")
            if self.link is not None:
                self.link.break_off()
            self._begin()


class Consumer:
    """Reads from the beginning, and asks each new leader whether it still has what was read (KIP-320)."""

    def __init__(self, world: "PartitionWatch", name: str) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(name)
        self.process = Process(world.scheduler, world.trace, name)
        self.process.start()
        self.gap_ms = self.chance.choice((150, 300, 600))
        self.reset(0)
        self._schedule()

    def reset(self, position: int) -> None:
        self.position = position
        self.last_epoch = -1
        self.validated_epoch = -1
        self.asked = 0

    def _schedule(self) -> None:
        self.process.after(1 + int(self.chance.random() * 2 * self.gap_ms), self._poll)

    def _poll(self) -> None:
        self._schedule()
        node = self.world.guess_leader(self.chance)
        if node is None:
            return
        leader_epoch = self.world.partition.leader_epoch
        self.asked += 1
        if self.last_epoch >= 0 and leader_epoch != self.validated_epoch:
            request: Consume | AskEpoch = AskEpoch(self.last_epoch, leader_epoch)
            then = partial(self._on_epoch, self.asked, leader_epoch)
        else:
            request = Consume(self.position, leader_epoch)
            then = partial(self._on_consumed, self.asked)
        self.world.network.ask(self.process, node.process, request, partial(node.serve, request), then)

    def _on_epoch(self, asked: int, leader_epoch: int, answer: ToldEpoch) -> None:
        if asked != self.asked or answer.end is None:
            return
        if 0 <= answer.end.end_offset < self.position:
            facts = f"{self.name} has read up to {self.position} in epoch {self.last_epoch}"
            raise Violation(6, f"{facts}, the leader of epoch {leader_epoch} has that up to {answer.end.end_offset}")
        self.validated_epoch = leader_epoch

    def _on_consumed(self, asked: int, answer: Consumed) -> None:
        if asked != self.asked:
            return
        if answer.code is ErrorCode.OFFSET_OUT_OF_RANGE and answer.log_start_offset > self.position:
            # The records that it has read were deleted, so there is nothing to ask a new leader about.
            self.position, self.last_epoch = answer.log_start_offset, -1
            self.world.states.reach("consumer reset to the log's start")
        now_ms = self.world.scheduler.now_ms
        for batch in batches(answer.records):
            for offset, value in self.world.values_of(batch):
                if offset >= self.position:
                    self.world.history.record(Read(now_ms, self.name, offset, value))
                    self.position = offset + 1
            self.last_epoch = batch.header.leader_epoch
