"""Offsets in transactions: when they count, what a marker does, and what a new coordinator loads."""

from collections.abc import Awaitable, Callable
from typing import Any

from cases import case
from coordinators_bench import NAME, Bench, Replica, code_of, offset_of, run
from test_groups_offsets import WEEK_MS, commit_of

from minibroker.coordinators.internal_topics import rules_for
from minibroker.coordinators.tickets import Ticket
from minibroker.coordinators.txn_commits import TransactionalCommits, marker_ticket, write_marker
from minibroker.groups.pending import Producer
from minibroker.groups.shard import GroupShard
from minibroker.groups.steps import Step
from minibroker.groups.tables.delete_groups import DeleteGroupsRequest
from minibroker.log.batch import batches
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.registry import Call, Session
from minibroker.partitions.waiting import Wait
from minibroker.segments.segmented import SegmentedLog
from minibroker.transactions.markers import Marker
from minibroker.transactions.state import TransactionLog
from minibroker.transactions.tables.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.tables.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

WHO = Producer(7, 0)
V2_EPOCH = 2


class Topic:
    """Every group is in the partition of the bench."""

    def partition_of(self, _key: str) -> Any:
        return NAME


class Verifier:
    """The transaction coordinator, whose answer a test gives."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []
        self.answers: list[Callable[[ErrorCode], None]] = []

    def verify(self, _id: str, producer_id: int, epoch: int, names: Any, *, is_add: bool, done: Any) -> None:
        self.asked.append((producer_id, epoch, is_add))
        self.answers.append(lambda code: done(dict.fromkeys(names, code)))


class Txn(Bench):
    """A group coordinator whose offsets may be part of transactions."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        # The log remembers producers and their coordinators, as on a node.
        self.files.mkdir("t")
        producers = ProducerStates(self.files, "t")
        transactions = TransactionLog(
            self.files, "t", producers, lambda: self.replica.high_watermark, wake=self.waiting.wake
        )
        log = SegmentedLog.open(self.files, "t", companions=[producers, transactions])
        self.replica = Replica(NAME, log, leader_epoch=3, wake=self._wake)
        self.partition = LocalPartition(NAME, log, producers, TopicConfig(None), self.replica, rules=rules_for(NAME))
        self.verifier = Verifier()
        topic: Any = Topic()
        self.handler = TransactionalCommits(self._pass_on, topic, self.verifier)

    def _pass_on(self, key: str, ticket: Ticket, event: Any, *, may_wait: bool = True) -> None:
        del key
        self.coordinator.handle(ticket, event, may_wait=may_wait)

    def send(self, offset: int, who: Producer = WHO, *, version: int = 3, **fields: Any) -> list[Any]:
        """Send TxnOffsetCommit. The list gets its answer."""
        partitions = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
        request = TxnOffsetCommitRequest(
            transactional_id="copier",
            group_id="g",
            producer_id=who.id,
            producer_epoch=who.epoch,
            topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=partitions)],
            **fields,
        )
        found: list[Any] = []
        answer = self.handler(Call(request, version, RequestHeader(28, version, 0, None), 0, Session("test")))
        if isinstance(answer, Wait):
            self.waiting.park(answer, found.append, now_ms=0)
        else:
            found.append(answer)
        self.waiting.settle()
        return found

    async def put(self, offset: int, who: Producer = WHO, **options: Any) -> ErrorCode:
        """Store a pending offset, which the transaction coordinator allows."""
        found = self.send(offset, who, **options)
        for answer in self.verifier.answers:
            answer(ErrorCode.NONE)
        self.verifier.answers.clear()
        await self.until(lambda: self._settled(found))
        return code(found)

    def _settled(self, found: list[Any]) -> bool:
        self.waiting.settle()
        return bool(found)

    def mark(self, *, is_commit: bool, who: Producer = WHO, version: int = 0, epoch: int = 1) -> list[ErrorCode]:
        """Write a marker. The list gets its code."""
        found: list[ErrorCode] = []
        ticket, marker = marker_ticket(found.append), Marker(*who, is_commit, epoch, version)
        self.coordinator.handle(ticket, lambda shard, now: write_marker(self.partition, marker, ticket, shard, now))
        return found

    async def end(self, *, is_commit: bool, **options: Any) -> ErrorCode:
        """Write a marker, and wait until it is replicated."""
        found = self.mark(is_commit=is_commit, **options)
        await self.until(lambda: self._settled(found))
        return found[0]

    def stable(self) -> ErrorCode | int | None:
        """Fetch the committed offset with `require_stable`."""
        topics = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
        group = OffsetFetchRequestGroup(group_id="g", topics=topics)
        ticket = self.ask(
            OffsetFetchRequest(groups=[group]),
            9,
            lambda shard, ticket, _now: shard.on_fetch(ticket, group, 9, require_stable=True),
        )
        return code_of(ticket) or offset_of(ticket)

    async def reload(self) -> None:
        """Another coordinator takes over."""
        self.coordinator.resign()
        await self.load()


def code(found: list[Any]) -> ErrorCode:
    return ErrorCode(found[0].topics[0].partitions[0].error_code)


def test(body: Callable[[Txn], Awaitable[None]], **changes: Any) -> None:
    async def work() -> None:
        bench = Txn(**changes)
        await bench.load()
        await body(bench)

    run(work)


test.__test__ = False  # type: ignore[attr-defined]


def test_an_offset_in_a_transaction_counts_after_the_commit_marker_and_never_after_an_abort() -> None:
    """Trap 8: an offset is unstable until the marker, and not longer."""
    for is_commit, expected in ((True, 5), (False, 3)):
        for reloads in (False, True):

            async def body(
                bench: Txn, is_commit: bool = is_commit, expected: int = expected, reloads: bool = reloads
            ) -> None:
                first = bench.commit(3)
                await bench.until(lambda: first.response is not None)
                assert await bench.put(5) is ErrorCode.NONE
                if reloads:
                    await bench.reload()
                assert offset_of(bench.fetch()) == 3
                assert bench.stable() is ErrorCode.UNSTABLE_OFFSET_COMMIT
                assert await bench.end(is_commit=is_commit) is ErrorCode.NONE
                assert (offset_of(bench.fetch()), bench.stable()) == (expected, expected)
                await bench.reload()
                assert (offset_of(bench.fetch()), len(bench.coordinator.shard.pending)) == (expected, 0)

            with case(f"{is_commit=}, {reloads=}"):
                test(body)


def test_a_later_plain_commit_is_not_replaced_by_an_earlier_one_of_a_transaction() -> None:
    """Trap 6: the order of the records decides, live and in a replay."""

    async def body(bench: Txn) -> None:
        await bench.put(5)
        later = bench.commit(9)
        await bench.until(lambda: later.response is not None)
        await bench.end(is_commit=True)
        assert offset_of(bench.fetch()) == 9
        await bench.reload()
        assert offset_of(bench.fetch()) == 9

    test(body)


def test_a_marker_is_answered_after_its_offsets_can_be_fetched() -> None:
    """Trap 34: a transaction whose markers are written is complete, and its offsets count."""

    async def body(bench: Txn) -> None:
        await bench.put(5)
        bench.replica.watermark = bench.partition.log_end_offset
        found = bench.mark(is_commit=True)
        fetched = bench.fetch()
        await bench.until(lambda: bench.partition.log_end_offset == 2)
        bench.waiting.settle()
        assert (found, fetched.response) == ([], None)
        bench.replica.watermark = 2
        bench.waiting.wake(NAME)
        bench.waiting.settle()
        assert (found, offset_of(fetched)) == ([ErrorCode.NONE], 5)

    test(body)


def test_offsets_of_a_transaction_are_in_batches_of_its_producer() -> None:
    async def body(bench: Txn) -> None:
        bench.commit(1)
        found = bench.send(5)
        bench.verifier.answers.pop()(ErrorCode.NONE)
        bench.commit(2)
        bench.mark(is_commit=True)
        await bench.until(lambda: bench._settled(found))
        written = [it.header for it in batches(bench.partition.log.read(0, bytes_max=2**20).read())]
        plain = [(it.producer_id, it.is_transactional, it.is_control) for it in written]
        assert plain == [(-1, False, False), (7, True, False), (-1, False, False), (7, True, True)]

    test(body)


def test_neither_expiry_nor_its_group_ends_while_an_offset_is_pending() -> None:
    """Traps 5 and 31."""

    async def body(bench: Txn) -> None:
        first = bench.commit(3)
        await bench.until(lambda: first.response is not None)
        await bench.put(5)
        bench.time_ms += 2 * WEEK_MS
        bench.coordinator.on_time(bench.time_ms)
        assert offset_of(bench.fetch()) == 3
        await bench.end(is_commit=True)
        assert offset_of(bench.fetch()) == 5

    test(body)


def test_a_deleted_group_does_not_come_back_with_a_marker() -> None:
    """Trap 31."""

    async def body(bench: Txn) -> None:
        await bench.put(5)
        request = DeleteGroupsRequest(groups_names=["g"])
        ticket = bench.ask(request, 2, lambda shard, ticket, _now: shard.on_delete(ticket, "g"))
        await bench.until(lambda: ticket.response is not None)
        assert code_of(ticket) is ErrorCode.NONE
        await bench.end(is_commit=True)
        assert offset_of(bench.fetch()) == -1
        await bench.reload()
        assert offset_of(bench.fetch()) == -1

    test(body)


def test_a_member_is_checked_if_it_is_named_and_may_commit_in_the_middle_of_a_rebalance() -> None:
    """Trap 7: a group that completes a rebalance accepts offsets of a transaction, but no plain commit."""

    async def body(bench: Txn) -> None:
        joined = bench.join()
        bench.time_ms += 3000
        bench.coordinator.on_time(bench.time_ms)
        await bench.until(lambda: bench._settled([joined.response] if joined.response else []))
        response: Any = joined.response
        member: dict[str, Any] = {"member_id": response.member_id, "generation_id": response.generation_id}
        assert await bench.put(5, **member) is ErrorCode.NONE
        assert await bench.put(5) is ErrorCode.NONE
        assert await bench.put(5, **(member | {"generation_id": 9})) is ErrorCode.ILLEGAL_GENERATION
        assert await bench.put(5, **(member | {"member_id": "other"})) is ErrorCode.UNKNOWN_MEMBER_ID

    test(body)


# Verification ---------------------------------------------------------------------------------------------------------


def test_the_transaction_coordinator_is_asked_once_for_each_transaction() -> None:
    async def body(bench: Txn) -> None:
        await bench.put(5)
        await bench.put(6)
        assert bench.verifier.asked == [(7, 0, False)]
        await bench.end(is_commit=True)
        await bench.put(7, version=5)
        assert bench.verifier.asked == [(7, 0, False), (7, 0, True)]
        # A new coordinator does not know whose transaction it is.
        await bench.reload()
        await bench.put(8, version=5)
        assert len(bench.verifier.asked) == 3

    test(body)


def test_the_answer_of_the_transaction_coordinator_is_translated() -> None:
    expected = {
        (ErrorCode.PRODUCER_FENCED, 5): ErrorCode.INVALID_PRODUCER_EPOCH,
        (ErrorCode.TRANSACTION_ABORTABLE, 4): ErrorCode.TRANSACTION_ABORTABLE,
        (ErrorCode.TRANSACTION_ABORTABLE, 3): ErrorCode.INVALID_TXN_STATE,
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        (ErrorCode.NOT_COORDINATOR, 3): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 3): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }

    async def body(bench: Txn) -> None:
        for (told, version), answered in expected.items():
            with case(told.name, version):
                found = bench.send(5, version=version)
                bench.verifier.answers.pop()(told)
                bench.waiting.settle()
                assert code(found) is answered
        assert bench.partition.log_end_offset == 0

    test(body)


def test_an_offset_is_not_stored_if_its_transaction_has_ended_while_the_coordinator_was_asked() -> None:
    """No marker would follow it, and it would be pending for ever."""

    async def body(bench: Txn) -> None:
        found = bench.send(5)
        await bench.end(is_commit=False)
        bench.verifier.answers.pop()(ErrorCode.NONE)
        bench.waiting.settle()
        assert code(found) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert len(bench.coordinator.shard.pending) == 0

    test(body)


def test_with_version_2_an_offset_may_wait_for_the_marker_of_the_transaction_before() -> None:
    """That marker has the epoch of the next transaction. A marker of a larger epoch ends it."""

    async def body(bench: Txn) -> None:
        who = Producer(7, 1)
        found = bench.send(5, who, version=5)
        await bench.end(is_commit=True, who=who, version=V2_EPOCH)
        bench.verifier.answers.pop()(ErrorCode.NONE)
        await bench.until(lambda: bench._settled(found))
        assert code(found) is ErrorCode.NONE
        # The same marker again must not end the next transaction.
        assert await bench.end(is_commit=True, who=who, version=V2_EPOCH) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert bench.stable() is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await bench.end(is_commit=True, who=Producer(7, 2), version=V2_EPOCH) is ErrorCode.NONE
        assert bench.stable() == 5

    test(body)


def test_a_marker_of_an_older_coordinator_is_refused() -> None:
    async def body(bench: Txn) -> None:
        await bench.put(5)
        assert await bench.end(is_commit=True, epoch=4) is ErrorCode.NONE
        await bench.put(6)
        assert await bench.end(is_commit=False, epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED

    test(body)


def test_a_commit_of_an_older_epoch_is_refused() -> None:
    def act(shard: GroupShard, ticket: Ticket, now_ms: int) -> Step:
        return shard.on_transactional_commit(ticket, commit_of({0: 4}), Producer(7, 0), "copier", now_ms)

    async def body(bench: Txn) -> None:
        await bench.put(5, Producer(7, 1))
        ticket = bench.ask(commit_of({0: 4}), 9, act)
        assert code_of(ticket) is ErrorCode.INVALID_PRODUCER_EPOCH

    test(body)
