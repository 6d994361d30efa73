"""The clients of the world of transactions: they copy records exactly once, and read what is committed.

A copier reads a range of its input partitions, writes each record to one of the output partitions, and commits the end
of the range, all in one transaction. It is a member of a group (KIP-447), or has a transactional id for each partition.
With version 1 it adds partitions by requests of its own; with version 2 (KIP-890) brokers add them.

A version 1 producer whose request got no answer gets a new epoch before its next transaction. Otherwise the late
request could act on that transaction, which no broker can prevent.
"""

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from groups_clients import COORDINATOR_GONE, LOST, ClassicMember, Client, ConsumerMember, Member, Plan, code_of
from groups_cluster import OFFSETS, Told, on_ended
from groups_loop import LoopProcess
from transactions_cluster import Line
from transactions_watch import INPUT, MIXED, Begun, Copied, Note

from minibroker.groups.pending import Producer
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.control import ControlType, control_type
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.records import by_topic
from minibroker.transactions.tables.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker.transactions.tables.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from minibroker.transactions.tables.end_txn import EndTxnRequest
from minibroker.transactions.tables.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if TYPE_CHECKING:
    from transactions_world import World

WRITE_MS_MAX = 2500
RESTART_MS = 500
FOREVER_MS = 2**40
RETRIABLE = {
    *COORDINATOR_GONE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
REFUSED = {
    ErrorCode.ILLEGAL_GENERATION: "offsets of an old generation refused",
    ErrorCode.UNKNOWN_MEMBER_ID: "offsets of a removed member refused",
}


class Versions(NamedTuple):
    """The versions of the requests of a producer."""

    init: int
    produce: int
    offsets: int
    end: int

    @property
    def adds(self) -> bool:
        """Whether the producer adds partitions itself."""
        return self.produce < 12


VERSION_1 = Versions(init=4, produce=11, offsets=4, end=4)
OLD_VERSION_1 = Versions(init=3, produce=10, offsets=3, end=1)
VERSION_2 = Versions(init=5, produce=12, offsets=5, end=5)


class Fenced(Exception):
    """Another producer has taken the transactional id."""


class Copier(Member):
    """A client with a transactional id. Its process runs one transaction after the other."""

    world: "World"
    process: LoopProcess

    def __init__(self, world: "World", name: str, plan: Plan, transactional_id: str, versions: Versions) -> None:
        super().__init__(world, name, plan)
        self.process = LoopProcess(world.scheduler, world.trace, name, lambda: None)
        self.transactional_id = transactional_id
        self.versions = versions
        self._lines: dict[TopicPartition, Line] = {}
        self.crash_after: int | None = None
        """After how many more steps the process dies."""

    # Life -------------------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        super().forget()
        self.who: Producer | None = None
        self.inputs: Collection[TopicPartition] = ()
        """The partitions whose records the open transaction copies."""
        self._had_id: Producer | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._has_lost = False
        self._lines = {}
        self.crash_after = None
        self.process.after(2, self._start_copying)

    def _start_copying(self) -> None:
        self.process.loop.create_task(self._copy()).add_done_callback(on_ended)

    def end(self, how: str) -> None:
        super().end(how)
        for line in self._lines.values():
            line.disconnect()

    def commit(self) -> None:
        """Only transactions commit."""

    def consume(self) -> None:
        """Only transactions move the positions."""

    @property
    def life(self) -> str:
        return f"{self.name}.{self.process.lives}"

    async def _step(self) -> None:
        """The process may die here."""
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                self.world.states.reach("copier died at a step")
                await self._die("crash at a step")

    async def _die(self, how: str) -> None:
        self.world.scheduler.after(0, partial(self.world.on_copier_died, self, how, self.process.lives))
        await asyncio.sleep(FOREVER_MS / 1000)

    # Requests ---------------------------------------------------------------------------------------------------------

    def line(self, name: TopicPartition) -> Line:
        """The connection to the node that leads a partition."""
        found = self._lines.get(name)
        if found is None:
            find = partial(self.world.guess_leader, self.chance, name)
            found = self._lines[name] = Line(self.world, self, find)
        return found

    async def _until(self, name: TopicPartition, version: int, make: Any, until_ms: int) -> Told | None:
        """Ask the leader of a partition until there is a final answer. None means that time is up."""
        while self.world.scheduler.now_ms < until_ms:
            await self._step()
            line = self.line(name)
            told: Told | None = await line.call(version, make(), timeout_ms=1800)
            self._has_lost |= told is None
            code = code_of(told)
            if code not in RETRIABLE:
                return told
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                line.disconnect()
            await asyncio.sleep(self.chance.choice((0.02, 0.05, 0.2)))
        return None

    @property
    def coordinator(self) -> TopicPartition:
        """The partition with the state of the transactional id."""
        return self.world.state_partition(self.transactional_id)

    # Transactions -----------------------------------------------------------------------------------------------------

    async def _copy(self) -> None:
        while True:
            try:
                if self.who is None:
                    await self._initialize()
                await self._transact()
            except Fenced:
                self.world.states.reach("producer fenced")
                await self._die("fenced")
            await asyncio.sleep(self.chance.choice(self.world.pauses_s))

    async def _initialize(self) -> None:
        asked = self._had_id or Producer(-1, -1)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.world.transaction_ms,
            producer_id=asked.id,
            producer_epoch=asked.epoch,
        )
        told = await self._until(self.coordinator, self.versions.init, lambda: request, FOREVER_MS)
        code, response = code_of(told), self._response(told)
        if code in FENCED:
            raise Fenced
        assert code is ErrorCode.NONE, code
        self.who = Producer(response.producer_id, response.producer_epoch)
        self._sequences, self._has_lost = {}, False
        self.world.outcomes.on_initialized(self.transactional_id, self.life, *self.who)
        self.on_initialized()

    def on_initialized(self) -> None:
        """The producer has a new epoch."""

    @staticmethod
    def _response(told: Told | None) -> Any:
        return None if told is None else told.response

    def claimed(self) -> tuple[str, int] | None:
        """The member id and the generation in whose name offsets are committed; None while there are none."""
        raise NotImplementedError

    async def _transact(self) -> None:
        claimed = self.claimed()
        inputs = {it: at for it, at in self.owned.items() if at is not None and self.chance.random() < 0.8}
        if not inputs or claimed is None:
            return
        ends = {it: at + self.chance.choice((1, 4, 8)) for it, at in inputs.items()}
        transaction = f"{self.name}.{next(self.world.numbers)}"
        outputs: dict[TopicPartition, list[Copied]] = {}
        for it, start in inputs.items():
            for offset in range(start, ends[it]) if it.topic == INPUT else ():
                output = self.world.output_of(it.partition, offset)
                outputs.setdefault(output, []).append(Copied(transaction, self.plan.group_id, it.partition, offset))
        offsets = {(self.plan.group_id, *it): end for it, end in ends.items()}
        self.world.outcomes.begin(transaction, Begun(self.transactional_id, self.life, outputs, offsets))
        self.inputs = inputs
        is_whole = await self._write(transaction, inputs, ends, outputs, claimed)
        is_commit = is_whole and self.chance.random() < 0.85
        is_done = await self._end(transaction, is_commit=is_commit)
        self.inputs = ()
        for it in [it for it, start in inputs.items() if self.owned.get(it) == start]:
            if not is_done:
                # The outcome is not known, so the position is not either.
                self.gain([it])
            elif is_commit:
                self.owned[it] = ends[it]

    async def _write(
        self,
        transaction: str,
        inputs: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
        outputs: dict[TopicPartition, list[Copied]],
        claimed: tuple[str, int],
    ) -> bool:
        """Write everything; return whether all of it was accepted."""
        until_ms = self.world.scheduler.now_ms + WRITE_MS_MAX
        if self.versions.adds and outputs and not await self._is_done(*self._adding(list(outputs)), until_ms):
            return False
        names = list(outputs)
        self.chance.shuffle(names)
        sends = [self.process.loop.create_task(self._send(it, outputs[it], until_ms)) for it in names]
        if not all([await it for it in sends]):
            return False
        if self.versions.adds and not await self._is_done(*self._adding_offsets(), until_ms):
            return False
        request = self._commit_request(transaction, inputs, ends, claimed)
        return await self._is_done(OFFSETS, self.versions.offsets, lambda: request, until_ms) and await self.before_end(
            transaction, inputs, ends
        )

    async def before_end(
        self, transaction: str, inputs: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> bool:
        """Do more before the transaction ends; return whether it may commit."""
        del transaction, inputs, ends
        return True

    async def _is_done(self, name: TopicPartition, version: int, make: Any, until_ms: int) -> bool:
        code = code_of(await self._until(name, version, make, until_ms))
        if code in FENCED:
            raise Fenced
        if code in REFUSED:
            self.world.states.reach(REFUSED[code])
        if code in LOST:
            self.process.run(self.on_lost)
        return code is ErrorCode.NONE

    def on_lost(self) -> None:
        """The group goes on without this member."""

    def _adding(self, names: Sequence[TopicPartition]) -> tuple[TopicPartition, int, Any]:
        assert self.who is not None
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.who.id,
            v3_and_below_producer_epoch=self.who.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=ids) for name, ids in by_topic(names)],
        )
        return self.coordinator, 3, lambda: request

    def _adding_offsets(self) -> tuple[TopicPartition, int, Any]:
        assert self.who is not None
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.who.id,
            producer_epoch=self.who.epoch,
            group_id=self.plan.group_id,
        )
        return self.coordinator, 3, lambda: request

    async def _send(self, name: TopicPartition, values: list[Copied], until_ms: int) -> bool:
        assert self.who is not None
        sequence = self._sequences.get(name, 0)
        self._sequences[name] = sequence + len(values)
        batch = _batch(self.who, sequence, values)
        # A version 1 producer aborts sometimes as soon as an answer is missing, or late.
        is_hasty = self.versions.adds and self.chance.random() < 0.3

        def make() -> Request:
            return ProduceRequest(
                transactional_id=self.transactional_id,
                acks=-1,
                timeout_ms=1500,
                topic_data=[
                    TopicProduceData(
                        name=name.topic,
                        partition_data=[PartitionProduceData(index=name.partition, records=batch)],
                    )
                ],
            )

        if is_hasty:
            await self._step()
            timeout_ms = self.chance.choice((60, 200, 1800))
            told = await self.line(name).call(self.versions.produce, make(), timeout_ms=timeout_ms)
            self._has_lost |= told is None
            code = code_of(told)
        else:
            code = code_of(await self._until(name, self.versions.produce, make, until_ms))
        # A producer of an old epoch aborts, and learns from its coordinator whether it is fenced.
        return code is ErrorCode.NONE

    def _commit_request(
        self,
        transaction: str,
        inputs: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
        claimed: tuple[str, int],
    ) -> Request:
        assert self.who is not None
        member_id, epoch = claimed
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.plan.group_id,
            producer_id=self.who.id,
            producer_epoch=self.who.epoch,
            generation_id=epoch,
            member_id=member_id,
            group_instance_id=self.plan.instance_id if epoch >= 0 else None,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=ends[TopicPartition(topic, number)],
                            committed_metadata=Note(
                                transaction, inputs[TopicPartition(topic, number)], member_id, epoch
                            ).text(),
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(inputs)
            ],
        )

    async def _end(self, transaction: str, *, is_commit: bool) -> bool:
        """End the transaction; return whether it has the wanted outcome."""
        assert self.who is not None
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.who.id,
            producer_epoch=self.who.epoch,
            committed=is_commit,
        )
        if is_commit:
            self.world.outcomes.on_asked(transaction)
        told = await self._until(self.coordinator, self.versions.end, lambda: request, FOREVER_MS)
        code, response = code_of(told), self._response(told)
        if code in FENCED:
            raise Fenced
        is_done = code is ErrorCode.NONE
        if is_done:
            begun = self.world.outcomes.begun[transaction]
            self.world.history.acks += sum(map(len, begun.outputs.values())) + len(begun.offsets)
            self.world.outcomes.on_told(transaction, is_commit=is_commit)
        if is_done and not self.versions.adds:
            self.who = Producer(response.producer_id, response.producer_epoch)
            self._sequences = {}
        elif not is_done or self._has_lost or not is_commit:
            # Batches may be missing, so the sequence numbers begin again with a new epoch.
            self._had_id = self.who if self.chance.random() < 0.5 and is_done else None
            self.who = None
        return is_done


def _batch(who: Producer, sequence: int, values: Sequence[Copied]) -> bytes:
    builder = BatchBuilder(producer_id=who.id, producer_epoch=who.epoch, base_sequence=sequence, is_transactional=True)
    for it in values:
        builder.append(timestamp=0, key=None, value=it.encode())
    return bytes(builder.build())


# Kinds of copiers -----------------------------------------------------------------------------------------------------


class ClassicCopier(Copier, ClassicMember):
    """A copier in a classic group."""

    requires_stable = True

    def claimed(self) -> tuple[str, int] | None:
        return (self.member_id, self.epoch) if self.phase == "stable" else None

    def on_lost(self) -> None:
        if self.phase == "stable":
            self.lose_all(forgets_id=True)
            self.join()


class ConsumerCopier(Copier, ConsumerMember):
    """A copier in a group of the new protocol."""

    requires_stable = True

    def claimed(self) -> tuple[str, int] | None:
        return (self.member_id, self.epoch) if self.epoch > 0 else None

    def _release(self, epoch: int, given_up: set[TopicPartition]) -> None:
        # The member epoch stays while partitions are given up, so the coordinator would accept their offsets even
        # later. An application gives partitions up between two transactions, as in the callback of Java's consumer.
        if given_up.isdisjoint(self.inputs):
            super()._release(epoch, given_up)
        else:
            self.process.after(20, partial(self._release, epoch, given_up))


class LoneCopier(Copier):
    """A copier of one partition, whose transactional id is that of the partition."""

    def __init__(self, world: "World", name: str, plan: Plan, partition: TopicPartition, versions: Versions) -> None:
        super().__init__(world, name, plan, f"{plan.group_id}-{partition.partition}", versions)
        self.partition = partition

    def begin(self) -> None:
        """There is no group to join."""

    def beat(self) -> None:
        """There is no group."""

    def leave(self) -> None:
        """There is no group."""

    def is_settled(self) -> bool:
        return bool(self.owned) and None not in self.owned.values()

    def claimed(self) -> tuple[str, int] | None:
        return "", -1

    def on_initialized(self) -> None:
        # All earlier transactions of this id have ended, so the committed offset is the last one.
        self._is_fetching = False
        self.gain([self.partition])


class MixedCommitter(LoneCopier):
    """Commits offsets in transactions, and sometimes a later offset without one before the transaction ends."""

    async def before_end(
        self, transaction: str, inputs: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> bool:
        del inputs
        if self.chance.random() < 0.5:
            self._plain = ends[self.partition] + 1
            partition = OffsetCommitRequestPartition(
                partition_index=self.partition.partition,
                committed_offset=self._plain,
                committed_metadata=Note(f"{transaction}-plain", 0, "", -1).text(),
            )
            request = OffsetCommitRequest(
                group_id=self.plan.group_id,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[OffsetCommitRequestTopic(name=MIXED, partitions=[partition])],
            )
            await self.line(OFFSETS).call(9, request, timeout_ms=1800)
            ends[self.partition] += 1
        return True


# A reader -------------------------------------------------------------------------------------------------------------


class CommittedReader(Client):
    """Reads the committed records of one partition, as a consumer with `read_committed` does."""

    world: "World"

    def __init__(self, world: "World", name: TopicPartition) -> None:
        super().__init__(world, f"reader-{name.partition}")
        self.partition = name
        self.position = 0
        self.process.start()
        self.process.after(50, self._fetch)

    def find_node(self) -> Any:
        return self.world.guess_leader(self.chance, self.partition)

    def _fetch(self) -> None:
        wanted = FetchPartition(
            partition=self.partition.partition,
            fetch_offset=self.position,
            partition_max_bytes=self.chance.choice((300, 1 << 20)),
        )
        topic = FetchTopic(topic=self.partition.topic, partitions=[wanted])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, isolation_level=1, topics=[topic])
        self.ask(12, request, self._on_fetched)

    def _on_fetched(self, told: Told | None) -> None:
        if told is None or code_of(told) is not ErrorCode.NONE:
            self.disconnect()
            self.process.after(200, self._fetch)
            return
        response: Any = told.response
        (data,) = response.responses[0].partitions
        self._read(bytes(data.records or b""), data.aborted_transactions or [])
        self.process.after(self.chance.choice((1, 20, 100)), self._fetch)

    def _read(self, records: bytes, aborted: Sequence[Any]) -> None:
        starts = sorted((it.first_offset, it.producer_id) for it in aborted)
        skipped: set[int] = set()
        found: dict[int, Copied] = {}
        position = self.position
        for batch in batches(records):
            header = batch.header
            while starts and starts[0][0] <= header.next_offset - 1:
                skipped.add(starts.pop(0)[1])
            if header.is_control:
                if control_type(next(iter(batch.records()))) == ControlType.ABORT:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                values = ((it.offset, Copied.decode(it.value or b"")) for it in batch.records())
                found.update((offset, value) for offset, value in values if offset >= position)
            position = header.next_offset
        self.world.outputs[self.partition].on_read(self.position, position, found)
        self.position = position
