"""Kafka's layout, byte for byte: the files of a small log, written out by hand from the description of the formats.

    .log        batches (the description: `DefaultRecordBatch`)
    .index      relative offset:int32 position:int32, when more than the interval was written since the last entry:
                the last offset of the batch being appended, and its position
    .timeindex  timestamp:int64 relative offset:int32, with each offset entry if it rises: the largest timestamp so far,
                and the last offset of the first batch that reached it; once more when the segment is closed

`make test-java` has Kafka write its own files and compares; here nothing but the bytes below is needed.
"""

import struct
from itertools import zip_longest

from minibroker.log.batch import BatchBuilder
from minibroker.log.memory import MemoryFiles
from minibroker.log.record import Header
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.segmented import SegmentedLog

# An entry after every 100 bytes; six batches fit into a segment.
CONFIG = LogConfig(index_interval_bytes=100, segment_bytes=430)

NO_PRODUCER = "ffffffffffffffff ffff ffffffff"  # id, epoch, sequence

# position 0: offset 0 at 1000 ms
BATCH_0 = f"""
    0000000000000000 00000039 00000000 02 ebf1884b      base offset 0, length 57, leader epoch 0, magic, crc
    0000 00000000 00000000000003e8 00000000000003e8     attributes, last offset delta, base and max timestamp
    {NO_PRODUCER} 00000001                              no producer, one record
    0e 00 00 00 01 0261 00                              length 7, attributes, deltas 0 and 0, null key, "a", no headers
"""
# position 69: offsets 1 and 2 at 1002 and 1001 ms
BATCH_1 = f"""
    0000000000000001 00000041 00000000 02 68060d85      length 65
    0000 00000001 00000000000003ea 00000000000003ea     last offset delta 1
    {NO_PRODUCER} 00000002                              two records
    0e 00 00 00 01 0262 00                              "b"
    0e 00 01 02 01 0263 00                              timestamp delta -1, offset delta 1, "c"
"""
# position 146: offset 3 at 1001 ms; 146 bytes stand before it, so it becomes an entry
BATCH_3 = f"""
    0000000000000003 00000039 00000000 02 c9217563      no offset 2: that was in the batch before
    0000 00000000 00000000000003e9 00000000000003e9
    {NO_PRODUCER} 00000001
    0e 00 00 00 01 0264 00                              "d"
"""
# position 215: offset 4 at 1005 ms, a tombstone with a header; 69 bytes since the last entry
BATCH_4 = f"""
    0000000000000004 0000003d 00000000 02 d2f43874      length 61
    0000 00000000 00000000000003ed 00000000000003ed
    {NO_PRODUCER} 00000001
    16 00 00 00 026b 01 02 0268 0276                    length 11, key "k", null value, one header: "h", "v"
"""
# position 288: offset 5 at 1005 ms again; 142 bytes since the last entry, so it becomes one
BATCH_5 = f"""
    0000000000000005 00000039 00000000 02 208f89e9
    0000 00000000 00000000000003ed 00000000000003ed
    {NO_PRODUCER} 00000001
    0e 00 00 00 01 0265 00                              "e"
"""
# position 357: offset 6 at 1009 ms; the file ends at 426
BATCH_6 = f"""
    0000000000000006 00000039 00000000 02 f995f261
    0000 00000000 00000000000003f1 00000000000003f1
    {NO_PRODUCER} 00000001
    0e 00 00 00 01 0266 00                              "f"
"""
# The next segment. Position 0: offset 7, in epoch 5, without a timestamp
BATCH_7 = f"""
    0000000000000007 00000039 00000005 02 04aa4a9e      leader epoch 5
    0000 00000000 ffffffffffffffff ffffffffffffffff     no timestamp
    {NO_PRODUCER} 00000001
    0e 00 00 00 01 0267 00                              "g"
"""
# position 69: offset 8 at 1010 ms
BATCH_8 = f"""
    0000000000000008 00000039 00000005 02 8d466d6e
    0000 00000000 00000000000003f2 00000000000003f2
    {NO_PRODUCER} 00000001
    0e 00 00 00 01 0268 00                              "h"
"""
# position 138: offset 9 at 1008 ms; 138 bytes before it, so it becomes an entry
BATCH_9 = f"""
    0000000000000009 00000039 00000005 02 6114fc1f
    0000 00000000 00000000000003f0 00000000000003f0
    {NO_PRODUCER} 00000001
    0e 00 00 00 01 0269 00                              "i"
"""

FILES = {
    "00000000000000000000.log": BATCH_0 + BATCH_1 + BATCH_3 + BATCH_4 + BATCH_5 + BATCH_6,
    "00000000000000000000.index": """
        00000003 00000092    offset 3 at position 146
        00000005 00000120    offset 5 at position 288
    """,
    "00000000000000000000.timeindex": """
        00000000000003ea 00000002    1002 ms up to offset 3: reached by the batch that ends with 2
        00000000000003ed 00000004    1005 ms up to offset 5: reached first by the one that ends with 4
        00000000000003f1 00000006    1009 ms in all: added when the segment was closed
    """,
    "00000000000000000007.log": BATCH_7 + BATCH_8 + BATCH_9,
    "00000000000000000007.index": """
        00000002 0000008a    offset 9, which is 7 + 2, at position 138
    """,
    "00000000000000000007.timeindex": """
        00000000000003f2 00000001    1010 ms, reached at offset 8; closing has nothing to add
    """,
}


def bytes_of(written: str) -> bytes:
    """The bytes of the hexadecimal columns; the text after two spaces is a comment."""
    return bytes.fromhex("".join(line.strip().split("  ")[0] for line in written.splitlines()))


def write(log: SegmentedLog) -> None:
    append(log, (1000, None, b"a"))
    append(log, (1002, None, b"b"), (1001, None, b"c"))
    append(log, (1001, None, b"d"))
    append(log, (1005, b"k", None), headers=[("h", b"v")])
    append(log, (1005, None, b"e"))
    append(log, (1009, None, b"f"))
    append(log, (-1, None, b"g"), leader_epoch=5)
    append(log, (1010, None, b"h"), leader_epoch=5)
    append(log, (1008, None, b"i"), leader_epoch=5)


def append(
    log: SegmentedLog,
    *records: tuple[int, bytes | None, bytes | None],
    leader_epoch: int = 0,
    headers: list[Header] | None = None,
) -> None:
    builder = BatchBuilder()
    for timestamp, key, value in records:
        builder.append(timestamp=timestamp, key=key, value=value, headers=headers or [])
    log.append(builder.build(), leader_epoch=leader_epoch)


def check_file(files: MemoryFiles, name: str) -> None:
    """Compare a file with the bytes that were written out by hand. For an index, name the first wrong entry."""
    found, wanted = content(files, f"orders-0/{name}"), bytes_of(FILES[name])
    if name.endswith("index"):
        entries = zip_longest(entries_of(name, found), entries_of(name, wanted), fillvalue="no entry")
        for number, (entry, expected) in enumerate(entries):
            assert entry == expected, f"{name}, entry {number}: expected {expected}, found {entry}"
    assert found.hex() == wanted.hex(), name


def entries_of(name: str, data: bytes) -> list[str]:
    """The whole entries of an index, in words."""
    if name.endswith(".timeindex"):
        whole = data[: len(data) - len(data) % 12]
        return [f"{time} ms, reached at relative offset {offset}" for time, offset in struct.iter_unpack(">qi", whole)]
    whole = data[: len(data) - len(data) % 8]
    return [f"relative offset {offset} at position {position}" for offset, position in struct.iter_unpack(">ii", whole)]


def content(files: MemoryFiles, path: str) -> bytes:
    file = files.open(path, create=False)
    return file.pread(file.size(), 0)


def test_the_files_of_a_log_are_kafkas_byte_for_byte() -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, "orders-0", CONFIG)
    write(log)
    log.close()
    assert files.list("orders-0") == sorted(FILES)
    for name in FILES:
        check_file(files, name)


def test_an_entry_has_the_last_offset_of_a_batch_that_begins_more_than_the_interval_later() -> None:
    log = SegmentedLog.open(MemoryFiles(), "orders-0", LogConfig(index_interval_bytes=138))
    for value in (b"a", b"b", b"c"):
        append(log, (1000, None, value))
    (indexes,) = [segment.indexes for segment in log.segments]
    assert indexes.offsets.count == 0, "the third batch begins exactly the interval, 138 bytes, later: not more"
    append(log, (1000, None, b"d"), (1000, None, b"e"), (1000, None, b"f"))
    assert indexes.last_position() == (5, 207), "the batch has the offsets 3 to 5, and begins at position 207"


def test_a_closed_segment_has_its_last_time_entry_as_soon_as_the_log_has_rolled() -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, "orders-0", CONFIG)
    write(log)
    check_file(files, "00000000000000000000.timeindex")


def test_indexes_that_are_built_anew_are_the_same_bytes() -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, "orders-0", CONFIG)
    write(log)
    log.close()
    indexes = [name for name in FILES if name.endswith("index")]
    for name in indexes:
        files.unlink(f"orders-0/{name}")
    SegmentedLog.open(files, "orders-0", CONFIG).close()
    for name in indexes:
        check_file(files, name)


def test_a_log_that_is_opened_from_the_files_finds_every_offset_and_every_time() -> None:
    files = MemoryFiles()
    for name, written in FILES.items():
        files.open(f"orders-0/{name}").pwrite(bytes_of(written), 0)
    log = SegmentedLog.open(files, "orders-0", CONFIG, is_clean=True)
    assert log.log_end_offset == 10
    assert log.leader_epoch == 5
    positions = [log.read(offset, bytes_max=1).position for offset in range(10)]
    assert positions == [0, 69, 69, 146, 215, 288, 357, 0, 69, 138]
    found = [log.find_time(time) for time in range(999, 1012)]
    assert [record and record.offset for record in found] == [0, 0, 1, 1, 4, 4, 4, 6, 6, 6, 6, 8, None]


def test_the_checkpoints_are_kafkas_text() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    orders = data.open_log(TopicPartition("orders", 0), CONFIG)
    data.open_log(TopicPartition("with-dash", 11))
    write(orders)
    orders.delete_before(3)
    data.set_first_dirty_offset(TopicPartition("orders", 0), 7)
    data.close()
    # A version, how many entries there are, and the entries: topic, partition, offset.
    assert content(files, "data/recovery-point-offset-checkpoint") == b"0\n2\norders 0 10\nwith-dash 11 0\n"
    assert content(files, "data/log-start-offset-checkpoint") == b"0\n1\norders 0 3\n"
    assert content(files, "data/cleaner-offset-checkpoint") == b"0\n1\norders 0 7\n"
    assert content(files, "data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":-1}'
