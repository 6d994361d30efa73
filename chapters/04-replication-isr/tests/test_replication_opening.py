"""Opening a replica from its directory after a stop, a kill, or a power cut."""

from collections.abc import Callable
from random import Random

import pytest
from cases import case
from replication_nodes import NAME, ReplicaNode, batch_of, contents

from minibroker.log.batch import BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import Files, FileSlice
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.admission import Incoming
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, Aborted
from minibroker.partitions.producers import ProducerStates
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.wire.codes import ErrorCode

ALONE = PartitionImage((1,), (1,), 1, 4, 0)


def leader(*values: bytes, **producer: int) -> ReplicaNode:
    """A node that has led in epoch 4 and appended a batch for each value."""
    node = ReplicaNode(1, TopicConfig({}))
    node.replica.on_partition(ALONE, {}, 0)
    for number, value in enumerate(values):
        sequence = {"sequence": number} if producer else {}
        node.local.append(memoryview(batch_of(value, **producer, **sequence)), acks=ACKS_ALL, now_ms=0)
    return node


def kill(node: ReplicaNode) -> None:
    node.files.crashes += 1
    node.open()


def test_the_files_have_kafkas_names() -> None:
    node = leader(b"a")
    node.data.remember(HIGH_WATERMARKS, NAME, 1, is_urgent=True)
    assert "replication-offset-checkpoint" in node.files.list("data")
    assert "leader-epoch-checkpoint" in node.files.list("data/orders-0")


def test_a_replica_comes_back_with_its_log_its_epochs_and_its_producers() -> None:
    node = leader(b"a", b"b", producer_id=7)
    kill(node)
    assert contents(node.replica) == [(0, 4, b"a"), (1, 4, b"b")]
    assert node.replica.epochs.entries == [(4, 0)]
    assert node.local.producers.producers[7].last_sequence == 1


def test_the_watermark_is_the_remembered_one_up_to_the_end_of_the_log() -> None:
    """The checkpoint is written from time to time, and a power cut may have shortened the log since."""
    for remembered, expected in [(None, 0), (0, 0), (2, 2), (3, 3), (9, 3)]:
        with case(remembered, expected):
            node = leader(b"a", b"b", b"c")
            if remembered is not None:
                node.data.remember(HIGH_WATERMARKS, NAME, remembered, is_urgent=True)
            kill(node)
            assert node.replica.high_watermark == expected


def test_the_watermark_is_not_before_the_start_of_the_log() -> None:
    node = leader(b"a", b"b", b"c")
    node.data.remember(HIGH_WATERMARKS, NAME, 1, is_urgent=True)
    node.local.delete_records(2)
    kill(node)
    assert (node.replica.log.log_start_offset, node.replica.high_watermark) == (2, 2)


def test_a_replica_that_was_just_opened_has_no_role() -> None:
    node = leader(b"a")
    kill(node)
    assert node.replica.leading is None
    assert node.replica.following is None
    assert node.replica.position() is None


def test_after_a_power_cut_epochs_and_watermark_fit_the_shortened_log() -> None:
    ends = set()
    for seed in range(10):
        with case(seed):
            # The log was flushed once, so that some of it survives.
            node = leader(*(b"value-%d" % number for number in range(4)))
            node.replica.log.flush()
            for number in range(4, 10):
                node.local.append(memoryview(batch_of(b"value-%d" % number)), acks=ACKS_ALL, now_ms=0)
            node.data.remember(HIGH_WATERMARKS, NAME, 10, is_urgent=True)
            node.files.crash(Random(seed))
            node.open()
            replica = node.replica
            assert replica.log.log_start_offset <= replica.high_watermark <= replica.log.log_end_offset
            assert [epoch for _offset, epoch, _value in contents(replica)] == [4] * replica.log.log_end_offset
            assert replica.epochs.entries == [(4, 0)]
            ends.add(replica.log.log_end_offset)
    assert len(ends) > 2


def test_a_partition_may_have_its_own_rules_and_transaction_index() -> None:
    """The index is a companion of the log, and the partition asks it for the last stable offset."""

    class Undecided(Companion):
        """Takes every batch for the beginning of an open transaction."""

        first_offset = -1

        def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
            return log_end_offset

        def replay(self, header: BatchHeader, batch: FileSlice) -> None:
            raise AssertionError("the log was empty")

        def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
            self.first_offset = header.base_offset if self.first_offset < 0 else self.first_offset

        def last_stable_offset(self, high_watermark: int) -> int:
            return high_watermark if self.first_offset < 0 else min(high_watermark, self.first_offset)

        def aborted(self, offset: int, upto_offset: Callable[[], int]) -> list[Aborted]:
            return []

        def all_aborted(self) -> list[tuple[int, int, int]]:
            return []

    def one_record(it: Incoming) -> None:
        if it.header.record_count > 1:
            raise Refused(ErrorCode.INVALID_RECORD, "one record at a time")

    node, known = ReplicaNode(1, TopicConfig({})), Undecided()
    watermarks: list[Callable[[], int]] = []

    def opened(
        _name: TopicPartition, _files: Files, _dir: str, _known: ProducerStates, high_watermark: Callable[[], int]
    ) -> Undecided:
        watermarks.append(high_watermark)
        return known

    partition, replica = open_replica(
        node.data,
        node.files,
        TopicPartition("other", 0),
        TopicConfig({}),
        node_id=1,
        outbox=[],
        wake=lambda _key: None,
        rules_for=lambda name: lambda _config, _producers: [one_record] if name.topic == "other" else [],
        open_transactions=opened,
    )
    replica.on_partition(ALONE, {}, 0)
    partition.append(memoryview(batch_of(b"a")), acks=ACKS_ALL, now_ms=0)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
    assert [it() for it in watermarks] == [1]
    with pytest.raises(Refused, match="one record at a time"):
        partition.append(memoryview(batch_of(b"b", b"c")), acks=ACKS_ALL, now_ms=0)
