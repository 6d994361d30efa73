"""How a replica comes to be out of its directory, after a stop, a kill, or a power cut."""

from random import Random

import pytest
from replication_nodes import NAME, ReplicaNode, batch_of, contents

from minibroker.log.batch import BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import FileSlice
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.admission import Incoming
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, Aborted
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


@pytest.mark.parametrize(("remembered", "expected"), [(None, 0), (0, 0), (2, 2), (3, 3), (9, 3)])
def test_the_watermark_is_what_was_remembered_as_far_as_the_log_goes(remembered: int | None, expected: int) -> None:
    """The checkpoint is written now and then; and a power cut may have shortened the log since."""
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


def test_until_it_is_told_a_replica_has_no_role() -> None:
    node = leader(b"a")
    kill(node)
    assert node.replica.leading is None
    assert node.replica.following is None
    assert node.replica.position() is None


@pytest.mark.parametrize("seed", range(10))
def test_after_a_power_cut_epochs_and_watermark_fit_what_is_left_of_the_log(seed: int) -> None:
    node = leader(*(b"value-%d" % number for number in range(10)))
    node.data.remember(HIGH_WATERMARKS, NAME, 10, is_urgent=True)
    node.files.crash(Random(seed))
    node.open()
    replica = node.replica
    assert replica.log.log_start_offset <= replica.high_watermark <= replica.log.log_end_offset
    assert [epoch for _offset, epoch, _value in contents(replica)] == [4] * replica.log.log_end_offset
    assert replica.epochs.entries == ([(4, 0)] if replica.log.log_end_offset else [])


def test_a_partition_may_have_rules_of_its_own_and_what_knows_its_transactions() -> None:
    """It hears of every batch as a companion of the log, and the partition asks it how far committed records go."""

    class Undecided(Companion):
        """Takes every batch for the beginning of a transaction that is not decided."""

        first_offset = -1

        def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
            return log_end_offset

        def replay(self, header: BatchHeader, batch: FileSlice) -> None:
            raise AssertionError("the log was empty")

        def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
            self.first_offset = header.base_offset if self.first_offset < 0 else self.first_offset

        def last_stable_offset(self, high_watermark: int) -> int:
            return high_watermark if self.first_offset < 0 else min(high_watermark, self.first_offset)

        def aborted(self, offset: int, upto_offset: int) -> list[Aborted]:
            return []

    def one_record(it: Incoming) -> None:
        if it.header.record_count > 1:
            raise Refused(ErrorCode.INVALID_RECORD, "one record at a time")

    node, known = ReplicaNode(1, TopicConfig({})), Undecided()
    partition, replica = open_replica(
        node.data,
        node.files,
        TopicPartition("other", 0),
        TopicConfig({}),
        node_id=1,
        outbox=[],
        wake=lambda _key: None,
        rules_for=lambda name: lambda _config, _producers: [one_record] if name.topic == "other" else [],
        open_transactions=lambda _files, _directory: (known, known),
    )
    replica.on_partition(ALONE, {}, 0)
    partition.append(memoryview(batch_of(b"a")), acks=ACKS_ALL, now_ms=0)
    assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
    with pytest.raises(Refused, match="one record at a time"):
        partition.append(memoryview(batch_of(b"b", b"c")), acks=ACKS_ALL, now_ms=0)
