"""Kafka's own log and Kafka's own dump tool read our files, and ours read Kafka's: `make test-java`.

The name of this file keeps it out of `make test`, which needs neither.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from minibroker.coordinators import dump as coordinators_dump
from minibroker.log.batch import Batch, BatchBuilder, batches
from minibroker.log.compression import Compression
from minibroker.log.control import ControlType, build_marker
from minibroker.log.disk import OSFiles
from minibroker.log.record import Record
from minibroker.partitions.producers import ProducerStates
from minibroker.segments.checkpoint import TopicPartition, encode
from minibroker.segments.config import COMPACT, LogConfig
from minibroker.segments.dump import DirectoryDump, dump_of
from minibroker.segments.segmented import SegmentedLog
from minibroker.transactions.state import TransactionLog

HERE = Path(__file__).parent
START_MS = 1_700_000_000_000
KAFKA = {
    "segment_bytes": "internal.segment.bytes",  # segment.bytes has a minimum of 1 MB
    "segment_ms": "segment.ms",
    "segment_index_bytes": "segment.index.bytes",
    "index_interval_bytes": "index.interval.bytes",
}
SMALL = LogConfig(segment_bytes=2500, index_interval_bytes=300)


# Running Java -------------------------------------------------------------------------------------------------------


def java(main: str, *arguments: object) -> tuple[str, str]:
    """Run a class, or a source file, with Kafka's jars; return both streams."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", os.environ["KAFKA_CLASSPATH"], main, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def kafka_log(*arguments: object) -> list[list[str]]:
    """Run KafkaLog.java; return the words of each line that it printed."""
    stdout, _stderr = java(str(HERE / "KafkaLog.java"), *arguments)
    return [line.split(" ") for line in stdout.splitlines()]


def settings(config: LogConfig) -> list[str]:
    """The same configuration for Kafka."""
    return [f"{theirs}={getattr(config, ours)}" for ours, theirs in KAFKA.items()]


def dump_log_segments(directory: Path, *options: str) -> tuple[str, str]:
    files = sorted(str(path) for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    return java("org.apache.kafka.tools.DumpLogSegments", *options, "--files", ",".join(files))


# Our logs -----------------------------------------------------------------------------------------------------------


def build(records: list[Record], compression: Compression = Compression.NONE, **options: Any) -> bytearray:
    builder = BatchBuilder(compression=compression, **options)
    for record in records:
        builder.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers)
    return builder.build()


def every_kind(timestamp: int, number: int) -> Iterator[bytearray]:
    """A batch of each codec, with nulls and headers, and a transaction with its marker."""
    for codec in Compression:
        records = [
            Record(
                0, timestamp, b"key %d" % number, b"value " * (number + 1), [("trace", b"\x01\xff"), ("none", None)]
            ),
            Record(1, timestamp - 5, None, b"no key"),
            Record(2, timestamp + 5, b"tombstone", None),
        ]
        yield build(records[: 2 + number % 2], codec)
    of_producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 1}
    yield build([Record(0, timestamp, b"t", b"in")], base_sequence=number, is_transactional=True, **of_producer)
    end = ControlType.COMMIT if number % 2 else ControlType.ABORT
    yield build_marker(end, coordinator_epoch=3, timestamp=timestamp, **of_producer)


def write_ours(directory: Path, config: LogConfig = SMALL) -> SegmentedLog:
    """A log of ours with every kind of batch, still open; its files hold everything."""
    log = SegmentedLog.open(OSFiles(), str(directory), config)
    timestamp = START_MS
    for number in range(12):
        for batch in every_kind(timestamp, number):
            stamped_by_us = timestamp + 77 if number == 5 else None
            log.append(batch, leader_epoch=number // 3, log_append_time_ms=stamped_by_us)
            timestamp += -700 if number % 5 == 4 else 1000 * (number % 3)
    log.close()
    return SegmentedLog.open(OSFiles(), str(directory), config, is_clean=True)


def all_batches(log: SegmentedLog) -> list[Batch]:
    return [batch for segment in log.segments for batch in batches(segment.file.pread(segment.size, 0))]


def files_of(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    return {path.name: path.read_bytes() for path in paths}


def assert_same_files(ours: Path, theirs: Path) -> None:
    expected = files_of(theirs)
    found = files_of(ours)
    assert sorted(found) == sorted(expected)
    for name, content in expected.items():
        assert found[name].hex() == content.hex(), name


# Kafka reads what we write ------------------------------------------------------------------------------------------


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    directory = tmp_path / "ours-0"
    write_ours(directory).close()
    return directory


def complaints(stderr: str) -> list[str]:
    # For every segment but the first, Kafka's tool complains that its first offset does not follow -1.
    lines = stderr.splitlines()
    return [line for line in lines if not re.fullmatch(r"Non-consecutive offsets in .*|  -1 is followed by \d+", line)]


def fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))


def test_kafkas_dump_reads_our_batches(ours: Path) -> None:
    stdout, stderr = dump_log_segments(ours, "--deep-iteration", "--print-data-log")
    assert complaints(stderr) == []
    shown = [fields(line) for line in stdout.splitlines() if line.startswith("baseOffset: ")]
    log = SegmentedLog.open(OSFiles(), str(ours), SMALL, is_clean=True)
    assert len(log.segments) > 3
    found = all_batches(log)
    assert len(shown) == len(found)
    for line, batch in zip(shown, found, strict=True):
        header = batch.header
        assert line["isvalid"] == "true"
        assert int(line["baseOffset"]) == header.base_offset
        assert int(line["lastOffset"]) == header.last_offset
        assert int(line["count"]) == header.record_count
        assert int(line["partitionLeaderEpoch"]) == header.leader_epoch
        assert int(line["producerId"]) == header.producer_id
        assert int(line["baseSequence"]) == header.base_sequence
        assert int(line["crc"]) == header.crc
        assert int(line["size"]) == header.size
        assert line["compresscodec"] == Compression(header.compression).name.lower()
        assert line["isTransactional"] == str(header.is_transactional).lower()
        assert line["isControl"] == str(header.is_control).lower()
        assert int(line.get("CreateTime", line.get("LogAppendTime", ""))) == header.max_timestamp


def test_kafkas_dump_reads_our_records(ours: Path) -> None:
    stdout, _stderr = dump_log_segments(ours, "--deep-iteration", "--print-data-log")
    shown = [line for line in stdout.splitlines() if line.startswith("| offset: ")]
    log = SegmentedLog.open(OSFiles(), str(ours), SMALL, is_clean=True)
    records = [(record, batch.header) for batch in all_batches(log) for record in batch.records()]
    assert len(shown) == len(records)
    for line, (record, header) in zip(shown, records, strict=True):
        kind = "LogAppendTime" if header.attributes & 8 else "CreateTime"
        assert line.startswith(f"| offset: {record.offset} {kind}: {record.timestamp} ")
        assert f" headerKeys: [{','.join(key for key, _value in record.headers)}]" in line
        if header.is_control:
            assert re.search(r"endTxnMarker: (COMMIT|ABORT) coordinatorEpoch: 3", line)
            continue
        assert (f" key: {record.key.decode()}" in line) if record.key is not None else ("keySize: -1" in line)
        assert (f" payload: {record.value.decode()}" in line) if record.value is not None else ("valueSize: -1" in line)


@pytest.mark.parametrize("option", ["--verify-index-only", "--index-sanity-check"])
def test_kafkas_dump_has_no_complaint_about_our_indexes(ours: Path, option: str) -> None:
    stdout, stderr = dump_log_segments(ours, option)
    assert complaints(stderr) == []
    assert "is empty" not in stdout
    if option == "--index-sanity-check":
        indexes = [name for name in files_of(ours) if name.endswith("index")]
        assert stdout.count("passed sanity check.") == len(indexes)


def test_kafkas_dump_does_complain_about_a_wrong_index(ours: Path) -> None:
    """The control for the test above."""
    path = min(ours.glob("*.index"))
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    _stdout, stderr = dump_log_segments(ours, "--verify-index-only")
    assert "Mismatches in" in stderr
    shown = dump_of(OSFiles(), str(path))
    assert any("damaged" in line for line in shown.damaged_lines())
    assert shown.is_damaged


def test_kafkas_log_opens_our_directory_and_finds_what_we_find(ours: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy-0"
    shutil.copytree(ours, copy)
    assert_finds_the_same(ours, copy)
    assert_same_files(ours, copy)  # Kafka has had it open, and found nothing to mend


def test_kafkas_dump_reads_a_log_with_gaps_as_compaction_leaves_them(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1000, index_interval_bytes=100, cleanup_policy=frozenset({COMPACT}))
    log = SegmentedLog.open(OSFiles(), str(tmp_path / "gaps-0"), config)
    for offset in range(0, 120, 4):
        builder = BatchBuilder(base_offset=offset, leader_epoch=2)
        builder.append(timestamp=START_MS + offset, key=b"k", value=b"first")
        builder.append(timestamp=START_MS + offset, key=b"l", value=b"third", offset=offset + 2)
        log.append_as_follower(memoryview(builder.build()))
    log.close()
    stdout, stderr = dump_log_segments(tmp_path / "gaps-0", "--deep-iteration")
    shown = [int(fields(line)["offset"]) for line in stdout.splitlines() if line.startswith("| offset: ")]
    assert shown == [offset + delta for offset in range(0, 120, 4) for delta in (0, 2)]
    assert all("is followed by" in line for line in complaints(stderr))
    _stdout, stderr = dump_log_segments(tmp_path / "gaps-0", "--verify-index-only")
    assert complaints(stderr) == []


# We read what Kafka writes ------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    directory = tmp_path / "theirs-0"
    kafka_log("write", directory, *settings(SMALL))
    return directory


def assert_finds_the_same(ours: Path, theirs: Path) -> None:
    """Records, positions and lookups by time, in two directories that hold the same."""
    log = SegmentedLog.open(OSFiles(), str(ours), SMALL, is_clean=True)
    records = [record for batch in all_batches(log) for record in batch.records()]
    known = [record.timestamp for record in records]
    times = sorted({0, max(known) + 1, *(t + d for t in known for d in (-1, 0, 1))})
    lines = kafka_log("show", theirs, *times)
    assert lines[0] == ["end", str(log.log_end_offset)]
    assert [line for line in lines if line[0] == "record"] == [_record_words(log, record) for record in records]
    for _word, timestamp, *answer in (line for line in lines if line[0] == "time"):
        found = log.find_time(int(timestamp))
        assert answer == (["none"] if found is None else [str(found.offset), str(found.timestamp)]), timestamp
    log.close()


def _record_words(log: SegmentedLog, record: Record) -> list[str]:
    segment = max((s for s in log.segments if s.base_offset <= record.offset), key=lambda s: s.base_offset)
    found = segment.find(record.offset)
    assert found is not None
    position, _header = found
    fetched = log.read(record.offset, bytes_max=1)
    assert (fetched.file, fetched.position) == (segment.file, position)
    headers = [f"{key}={_hex(value)}" for key, value in record.headers]
    words = [record.offset, record.timestamp, _hex(record.key), _hex(record.value), segment.base_offset, position]
    return ["record", *map(str, words), *headers]


def _hex(data: bytes | None) -> str:
    return "null" if data is None else f"0x{data.hex()}"


def test_our_dump_finds_kafkas_files_sound(theirs: Path) -> None:
    shown = DirectoryDump(OSFiles(), str(theirs))
    (line,) = shown.damaged_lines()
    assert line.endswith("all good")
    for name in files_of(theirs):
        one = dump_of(OSFiles(), str(theirs / name))
        assert list(one.lines(records=True, annotated=False))[-1].endswith(": all good")
    epochs = dump_of(OSFiles(), str(theirs / "leader-epoch-checkpoint"))
    assert list(epochs.lines(records=True, annotated=False))[-1] == "4 entries: all good"


def open_with_transactions(directory: Path) -> TransactionLog:
    """Open a log with its producers and transactions; it writes its snapshots and closes again."""
    files, producers = OSFiles(), ProducerStates(OSFiles(), str(directory))
    transactions = TransactionLog(files, str(directory), producers, lambda: 2**62)
    SegmentedLog.open(files, str(directory), SMALL, companions=[producers, transactions]).close()
    return transactions


def test_our_aborted_transactions_and_producers_are_kafkas_to_the_byte(theirs: Path, tmp_path: Path) -> None:
    """From Kafka's log alone we make the files that Kafka made, and both sides read the other's."""
    copy = tmp_path / "copy-0"
    shutil.copytree(theirs, copy, ignore=shutil.ignore_patterns("*.txnindex", "*.snapshot"))
    transactions = open_with_transactions(copy)
    expected = {path.name: path.read_bytes() for path in theirs.glob("*.txnindex") if path.stat().st_size}
    assert {path.name: path.read_bytes() for path in copy.glob("*.txnindex")} == expected
    assert len(transactions.all_aborted()) == sum(map(len, expected.values())) // 34 > 0
    last = max(theirs.glob("*.snapshot"))
    assert (copy / last.name).read_bytes().hex() == last.read_bytes().hex()
    names = [*sorted(copy.glob("*.txnindex")), copy / last.name]
    stdout, stderr = java("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(map(str, names)))
    assert complaints(stderr) == []
    shown = [
        tuple(map(int, found))
        for found in re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)", stdout)
    ]
    assert shown == list(transactions.all_aborted())
    assert re.search(r"producerId: 7 producerEpoch: 1 coordinatorEpoch: 3", stdout)
    for path in [*theirs.glob("*.txnindex"), last]:
        one = coordinators_dump.dump_of(OSFiles(), str(path), topic="theirs")
        assert list(one.lines(records=True, annotated=False))[-1].endswith(": all good"), path.name


def test_we_find_in_kafkas_files_what_kafka_finds(theirs: Path) -> None:
    assert_finds_the_same(theirs, theirs)


@pytest.mark.parametrize("is_clean", [True, False])
def test_opening_kafkas_log_leaves_every_byte_as_it_is(theirs: Path, tmp_path: Path, is_clean: bool) -> None:
    """Also when everything is checked and both indexes are rebuilt: they come out the same."""
    copy = tmp_path / "copy-0"
    shutil.copytree(theirs, copy)
    SegmentedLog.open(OSFiles(), str(copy), SMALL, is_clean=is_clean).close()
    assert_same_files(copy, theirs)


def test_kafka_reads_our_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(encode({TopicPartition("orders", 0): 1523, TopicPartition("with-dash", 11): 2**40}))
    assert sorted(kafka_log("offsets", path)) == [["orders-0", "1523"], ["with-dash-11", str(2**40)]]


# The same batches, the same bytes -----------------------------------------------------------------------------------

CONFIGS = {
    "small segments": LogConfig(segment_bytes=4000, index_interval_bytes=500),
    "an entry for each batch": LogConfig(segment_bytes=20_000, index_interval_bytes=0),
    "rolled by time": LogConfig(segment_ms=60_000, index_interval_bytes=1000),
    "rolled by a full index": LogConfig(segment_index_bytes=100, index_interval_bytes=200),
    "rolled by a full offset index": LogConfig(segment_index_bytes=96, index_interval_bytes=200),
    "one segment, Kafka's interval": LogConfig(),
}


def random_batches(seed: int, count: int, steps: Sequence[int]) -> Iterator[bytearray]:
    """Timestamps advance by one of the steps, and some records have none."""
    chance = random.Random(seed)
    timestamp = START_MS
    for _ in range(count):
        timestamp += chance.choice(steps)
        records = [
            Record(
                0, -1 if chance.random() < 0.05 else timestamp + chance.randrange(-9, 9), None, chance.randbytes(size)
            )
            for size in [chance.randrange(300) for _ in range(chance.randrange(1, 5))]
        ]
        yield build(records, chance.choice(list(Compression)))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_batches_make_the_same_files(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    log = SegmentedLog.open(OSFiles(), str(tmp_path / "ours-0"), config)
    # An offset index fills before the time index only where few batches have a new largest timestamp.
    steps = [0] if "offset index" in name else [0, 0, 1, 700, 5000, -3000, 30_000]
    for number, batch in enumerate(random_batches(seed=len(name), count=400, steps=steps)):
        log.append(batch, leader_epoch=number // 100)
    (tmp_path / "batches").write_bytes(b"".join(batch.view for batch in all_batches(log)))
    if name != "one segment, Kafka's interval":
        assert len(log.segments) > 5
    log.close()
    kafka_log("append", tmp_path / "theirs-0", tmp_path / "batches", *settings(config))
    assert_same_files(tmp_path / "ours-0", tmp_path / "theirs-0")
