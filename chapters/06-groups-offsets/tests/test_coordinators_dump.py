"""The dump of aborted transactions, producers and internal topics."""

import json

from cases import case
from transactions_log import DIRECTORY, LoggedTransactions

from minibroker.coordinators.dump import DirectoryDump, dump_of, topic_of
from minibroker.groups.records import GroupMetadataKey, GroupRecord, OffsetCommitKey, OffsetCommitValue, encode
from minibroker.log.batch import BatchBuilder
from minibroker.log.memory import MemoryFiles
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.dump import Dump
from minibroker.segments.segmented import SegmentedLog
from minibroker.transactions import records as transaction_records
from minibroker.transactions.ids import Transaction
from minibroker.transactions.records import TransactionRecord
from minibroker.transactions.transitions import TransactionState

A, B = 1, 2
FIRST = f"{0:020}"


def filled() -> LoggedTransactions:
    log = LoggedTransactions()
    log.send(A, 2)
    log.send(B)
    log.abort(A, coordinator_epoch=4)
    log.abort(B, is_bumping=True)
    log.replicate()
    log.log.roll()
    return log


def shown(dump: Dump, *, annotated: bool = False) -> list[str]:
    return list(dump.lines(records=True, annotated=annotated))


def of(log: LoggedTransactions, name: str) -> Dump:
    return dump_of(log.files, f"{DIRECTORY}/{name}", topic="orders")


def test_the_aborted_transactions_of_a_segment_are_shown() -> None:
    log = filled()
    assert shown(of(log, f"{FIRST}.txnindex")) == [
        "entry 0: version 0, producer id 1, first offset 0, last offset 3, last stable offset 2",
        "entry 1: version 0, producer id 2, first offset 2, last offset 4, last stable offset 5",
        "2 entries: all good",
    ]
    assert shown(of(log, f"{FIRST}.txnindex"), annotated=True)[1:4] == [
        "       0  00 00                    version                  0",
        "       2  00 00 00 00 00 00 00 01  producer id              1",
        "      10  00 00 00 00 00 00 00 00  first offset             0",
    ]
    first, _second = of(log, f"{FIRST}.txnindex").objects(records=True)
    assert json.loads(json.dumps(first)) == {
        "position": 0,
        "version": 0,
        "producer_id": 1,
        "first_offset": 0,
        "last_offset": 3,
        "last_stable_offset": 2,
        "damage": None,
    }


def test_an_entry_is_compared_with_the_marker_in_the_log() -> None:
    for what, position, expected in (
        ("version", 1, "version 9, but only 0 is known"),
        ("producer", 9, "the log has no abort marker of producer 9 at offset 3"),
        ("last offset", 25, "the log has no abort marker of producer 1 at offset 9"),
    ):
        with case(what):
            log = filled()
            log.files.open(f"{DIRECTORY}/{FIRST}.txnindex").pwrite(b"\x09", position)
            dump = of(log, f"{FIRST}.txnindex")
            assert f"  damaged: {expected}" in list(dump.damaged_lines())
            assert dump.is_damaged
            directory = DirectoryDump(log.files, DIRECTORY)
            assert f"{DIRECTORY}/{FIRST}.txnindex: position 0: {expected}" in list(directory.damaged_lines())
            assert directory.is_damaged


def test_a_sound_directory_has_no_complaint() -> None:
    log = filled()
    log.data.close()
    directory = DirectoryDump(log.files, DIRECTORY)
    assert list(directory.objects(records=False)) == []
    assert not directory.is_damaged


def test_the_producers_of_a_snapshot_are_shown() -> None:
    log = filled()
    lines = shown(of(log, f"{5:020}.snapshot"))
    assert lines[0].startswith("head: version 1, crc ")
    assert lines[1:] == [
        "entry 0: producer id 1, producer epoch 0, last sequence 1, last offset 1, offset delta 1, timestamp 0, "
        "coordinator epoch 4, current txn first offset -1",
        "entry 1: producer id 2, producer epoch 1, last sequence -1, last offset -1, offset delta 0, timestamp 0, "
        "coordinator epoch 0, current txn first offset -1",
        "2 entries: all good",
    ]
    file = log.files.open(f"{DIRECTORY}/{5:020}.snapshot")
    file.pwrite(b"\x07", 17)
    dump = of(log, f"{5:020}.snapshot")
    assert "have the CRC" in "".join(dump.damaged_lines())
    file.truncate(20)
    assert "  damaged: only 10 of 46 bytes" in list(of(log, f"{5:020}.snapshot").damaged_lines())
    file.truncate(3)
    assert "  damaged: only 3 of 10 bytes" in list(of(log, f"{5:020}.snapshot").damaged_lines())


def test_markers_are_shown_with_their_coordinator_epoch() -> None:
    log = filled()
    assert any(line.endswith("ABORT by coordinator epoch 4") for line in shown(of(log, f"{FIRST}.log")))


def test_records_of_an_internal_topic_are_shown_with_their_meaning() -> None:
    commit = GroupRecord(
        OffsetCommitKey(group_id="g", topic="orders", partition=0),
        OffsetCommitValue(offset=7, leader_epoch=1, metadata="", commit_timestamp=5),
    )
    deleted = GroupRecord(GroupMetadataKey(group_id="g"), None)
    first, second, third, fourth = meanings(
        "__consumer_offsets", encode(commit), encode(deleted), (b"\0\x63", b"new"), (b"\0\x01", b"short")
    )
    assert "OffsetCommitKey(group_id='g', topic='orders', partition=0): OffsetCommitValue(offset=7" in first
    assert second.endswith("GroupMetadataKey(group_id='g'): deleted")
    assert "new" in third
    assert "damaged: record of __consumer_offsets" in fourth


def test_the_states_of_transactional_ids_are_shown() -> None:
    names = frozenset({TopicPartition("orders", 1), TopicPartition("orders", 0)})
    state = Transaction(7, 3, 60_000, TransactionState.ONGOING, 5, partitions=names, started_ms=4)
    ongoing, deleted = meanings(
        "__transaction_state",
        transaction_records.encode(TransactionRecord("copier", state)),
        transaction_records.encode(TransactionRecord("copier", None)),
    )
    assert ongoing.endswith("'copier': ONGOING, producer id 7 epoch 3, orders-0, orders-1, timeout 60000 ms")
    assert deleted.endswith("'copier': deleted")


def meanings(topic: str, *records: tuple[bytes, bytes | None]) -> list[str]:
    """The lines of these records in a dump of a partition of the topic."""
    files = MemoryFiles()
    log = SegmentedLog.open(files, f"data/{topic}-3")
    builder = BatchBuilder()
    for key, value in records:
        builder.append(timestamp=0, key=key, value=value)
    log.append(builder.build())
    log.close()
    path = f"data/{topic}-3/{FIRST}.log"
    assert topic_of(path) == topic
    _batch, *found, _last = shown(dump_of(files, path, topic=topic_of(path)))
    return found
