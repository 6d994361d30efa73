"""Recovery: how much of a file is valid after a crash, a torn write or a flipped bit (invariants 2 and 4)."""

import struct
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from log_cases import each_case
from log_strategies import small_batch

from minibroker.log.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    batches,
    read_header,
    stamp,
)
from minibroker.log.errors import CorruptBatch
from minibroker.log.interfaces import File
from minibroker.log.logfile import EVERY_APPEND, NEVER, FlushPolicy, LogFile
from minibroker.log.memory import MemoryFiles
from minibroker.log.recovery import Recovered, check_continuity, is_torn_tail, recover

EVERYTHING = 2**31


def values(log: LogFile) -> list[bytes]:
    found = log.read(log.log_start_offset, bytes_max=EVERYTHING)
    return [record.value or b"" for batch in batches(found.read()) for record in batch.records()]


def written(*epochs: int) -> tuple[bytes, list[int]]:
    """A log file with one batch of two records for each epoch, and where its batches begin and end."""
    content, ends = b"", [0]
    for index, epoch in enumerate(epochs):
        batch = small_batch(b"%d" % (2 * index), b"%d" % (2 * index + 1))
        stamp(batch, base_offset=2 * index, leader_epoch=epoch)
        content += batch
        ends.append(len(content))
    return content, ends


def file_of(content: bytes) -> File:
    file = MemoryFiles().open("a.log")
    file.pwrite(content, 0)
    return file


def recovered(content: bytes, *, base_offset: int = 0, recovery_point: int = 0) -> Recovered:
    start = Recovered(size=0, log_end_offset=base_offset)
    return recover(file_of(content), start=start, recovery_point=recovery_point)


def reopened(content: bytes, *, recovery_point: int = 0) -> LogFile:
    files = MemoryFiles()
    files.open("a.log").pwrite(content, 0)
    return LogFile.open(files, "a.log", recovery_point=recovery_point)


# Torn tails: invariant 4


def test_a_file_cut_at_any_byte_keeps_every_whole_batch() -> None:
    content, ends = written(0, 0, 0)
    for cut in range(len(content) + 1):
        log = reopened(content[:cut])
        whole = sum(end <= cut for end in ends) - 1
        assert values(log) == [b"%d" % n for n in range(2 * whole)], cut
        assert log.append(small_batch(b"next")) == 2 * whole
        assert (log.recovered.damage is None) == (cut in ends)


def test_damage_is_named_by_its_place_in_the_file() -> None:
    content, ends = written(0, 0)
    assert f"position {ends[1]}: only 30 of 61 header bytes" in str(recovered(content[: ends[1] + 30]).damage)


def test_a_tail_of_zeros_is_cut() -> None:
    content, ends = written(0, 0)
    found = recovered(content + bytes(5000))
    assert (found.size, found.log_end_offset, found.batch_count) == (ends[2], 4, 2)
    assert "magic 0" in str(found.damage)


def test_a_hole_of_zeros_before_a_later_page_is_cut_from_the_hole_on() -> None:
    content, ends = written(0, 0, 0)
    holed = content[: ends[1]] + bytes(ends[2] - ends[1]) + content[ends[2] :]
    assert recovered(holed).size == ends[1]


@given(st.binary(max_size=300))
def test_garbage_after_good_batches_is_cut(garbage: bytes) -> None:
    content, ends = written(0, 0)
    assert recovered(content + garbage).size == ends[2]


def test_the_cut_is_on_the_disk_before_anything_is_served() -> None:
    content, _ends = written(0, 0)
    files = MemoryFiles()
    files.open("a.log").pwrite(content[:-1], 0)
    served = LogFile.open(files, "a.log").read(0, bytes_max=EVERYTHING).count
    files.crash()
    assert files.open("a.log").size() == served > 0


# Flipped bits: invariant 2


def test_every_single_flipped_bit_is_found_and_never_served() -> None:
    content, ends = written(0, 0, 0)
    for position in range(len(content)):
        index = sum(end <= position for end in ends) - 1  # the batch that holds the flipped bit
        within = position - ends[index]
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            log = reopened(bytes(flipped))
            if LEADER_EPOCH_AT <= within < LEADER_EPOCH_AT + 4 and index == 2 and log.log_end_offset == 6:
                # No batch after the last one contradicts a raised epoch; the next append does.
                with pytest.raises(Exception, match="is older than"):
                    log.append(small_batch(b"next"), leader_epoch=0)
                continue
            assert values(log) == [b"%d" % n for n in range(2 * index)], (position, bit)


@each_case(
    ("epochs", "flipped_batch", "bit", "left"),
    [
        ((1, 1, 1, 1), 1, 1, 1),  # 1 → 3 in the second: it stands out, so it and all after it are cut off
        ((5, 5, 5, 5), 2, 0, 2),  # 5 → 4 in the third: it is below both before it, so it and all after it are cut off
        ((0, 4, 4, 4), 1, 3, 1),  # 4 → 12 right after a real change of epoch
        ((2, 2, 2, 2), 0, 4, 0),  # the first of all, contradicted by the two after it
        ((5, 5, 5), 1, 0, 1),  # 5 → 4 in the second: the third agrees with the first, so the second is wrong
        ((4, 4), 1, 2, 0),  # 4 → 0 in the last of two: either may be wrong, so both are cut off
    ],
)
def test_a_flipped_epoch_is_found_by_its_neighbours(
    epochs: tuple[int, ...], flipped_batch: int, bit: int, left: int
) -> None:
    content, ends = written(*epochs)
    flipped = bytearray(content)
    flipped[ends[flipped_batch] + LEADER_EPOCH_AT + 3] ^= 1 << bit
    found = recovered(bytes(flipped))
    assert found.log_end_offset == 2 * left
    assert "leader epoch" in str(found.damage)


@each_case(
    ("epochs", "flipped_batch", "bit"),
    [((1, 1, 1), 0, 0), ((0, 4, 4, 4), 0, 1), ((0, 4, 4, 4), 1, 2), ((1, 3, 7), 1, 1), ((1, 3, 7), 2, 2)],
)
def test_a_flipped_epoch_that_contradicts_no_neighbour_is_not_found(
    epochs: tuple[int, ...], flipped_batch: int, bit: int
) -> None:
    # This is the limit of the check of continuity: epochs that still do not decrease count as valid.
    content, ends = written(*epochs)
    flipped = bytearray(content)
    flipped[ends[flipped_batch] + LEADER_EPOCH_AT + 3] ^= 1 << bit
    assert recovered(bytes(flipped)).damage is None


def test_a_damaged_batch_is_no_evidence_about_the_epochs_before_it() -> None:
    content, _ends = written(1, 3, 1, 3)
    assert recovered(content).log_end_offset == 4  # the fourth batch continues the second, so the third is wrong
    for damaged in (content[:-1], content[:-1] + b"X"):
        assert recovered(damaged).log_end_offset == 2


def test_a_doubtful_epoch_removes_nothing_that_was_flushed() -> None:
    content, ends = written(4, 4)
    flipped = bytearray(content)
    flipped[ends[1] + LEADER_EPOCH_AT + 3] ^= 4
    found = recovered(bytes(flipped), recovery_point=2)
    assert (found.log_end_offset, found.size) == (2, ends[1])
    assert "leader epoch" in str(found.damage)  # without damage the rest would not be cut off


def test_epochs_may_rise() -> None:
    content, _ends = written(-1, -1, 0, 7)
    found = recovered(content)
    assert (found.log_end_offset, found.leader_epoch, found.damage) == (8, 7, None)


def test_a_length_of_two_gigabytes_is_not_read() -> None:
    content, ends = written(0, 0)
    lying = bytearray(content)
    lying[ends[1] + LENGTH_AT : ends[1] + LENGTH_AT + 4] = b"\x7f\xff\xff\xff"
    assert recovered(bytes(lying)).log_end_offset == 2


def test_a_batch_larger_than_a_chunk_is_checked_to_its_end() -> None:
    batch = small_batch(bytes(3_000_000))
    stamp(batch, base_offset=0, leader_epoch=0)
    file = file_of(bytes(batch))
    assert recover(file, start=Recovered(0, 0)).damage is None
    file.pwrite(b"\x01", file.size() - 1)
    assert recover(file, start=Recovered(0, 0)).batch_count == 0


@each_case(("field", "value"), [(57, 1), (57, 3), (57, 0), (23, 5)])
def test_wrong_counts_under_a_right_checksum_are_damage(field: int, value: int) -> None:
    content, ends = written(0, 0)
    lying = bytearray(content)
    batch = memoryview(lying)[ends[1] :]
    struct.pack_into(">i", batch, field, value)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    found = recovered(bytes(lying))
    assert found.log_end_offset == 2
    assert "last offset delta" in str(found.damage)


def test_gaps_are_damage_only_where_offsets_must_be_dense() -> None:
    content, ends = written(0, 0)
    gap = bytearray(content)
    gap[ends[1] + 7] = 9
    file = file_of(bytes(gap))
    start = Recovered(size=0, log_end_offset=0)
    assert recover(file, start=start).log_end_offset == 2
    assert recover(file, start=start, dense=False).log_end_offset == 11
    file.pwrite(b"\x01", ends[1] + 7)  # but they never decrease
    assert recover(file, start=start, dense=False).log_end_offset == 2


@each_case(
    ("base_offsets", "log_end_offset"),
    [
        ((0, 10, 4), 2),  # the third continues the first, so the second is wrong: it and all after it are cut off
        ((0, 10, 2, 4), 2),  # the fourth does not continue the second either
        ((0, 10, 2, 12), 12),  # the fourth continues the second, so the third is wrong
        ((0, 10, 0), 12),  # the third continues neither of the two before it
        ((0, 10, 12, 12), 14),  # no offset is missing before the third, so the fourth is wrong
        ((0, 2, 2, 2), 4),
    ],
)
def test_a_wrong_offset_in_a_compacted_log_is_found_by_its_neighbours(
    base_offsets: tuple[int, ...], log_end_offset: int
) -> None:
    content = b""
    for base_offset in base_offsets:
        batch = small_batch(b"a", b"b")
        stamp(batch, base_offset=base_offset, leader_epoch=0)
        content += batch
    found = recover(file_of(content), start=Recovered(size=0, log_end_offset=0), dense=False)
    assert found.log_end_offset == log_end_offset
    assert "base offset" in str(found.damage)


def test_what_is_known_to_be_valid_is_not_read_again() -> None:
    content, ends = written(0, 0, 0)
    start = Recovered(size=ends[1], log_end_offset=2, leader_epoch=0, batch_count=1)
    found = recover(file_of(bytes(ends[1]) + content[ends[1] :]), start=start)
    assert (found.size, found.log_end_offset, found.batch_count, found.damage) == (ends[3], 6, 3, None)


def test_a_gap_is_no_excuse_for_counts_that_compaction_cannot_leave() -> None:
    content, _ends = written(0)
    header = read_header(content)
    check_continuity(0, header._replace(record_count=0), expected_offset=0, dense=False)
    for wrong in (header._replace(record_count=3), header._replace(last_offset_delta=-1, record_count=0)):
        with pytest.raises(CorruptBatch, match="last offset delta"):
            check_continuity(0, wrong, expected_offset=0, dense=False)


def torn(content: bytes) -> bool:
    file = file_of(content)
    return is_torn_tail(file, recover(file, start=Recovered(0, 0)))


def test_a_torn_tail_is_told_from_other_damage() -> None:
    content, ends = written(0, 0, 0)
    assert all(torn(content[:cut]) for cut in range(len(content)) if cut not in ends)
    assert torn(content + bytes(100))
    assert torn(content[:-1] + b"X")  # the last batch fails its checksum, and nothing follows it
    flipped = bytearray(content)
    flipped[ends[1] + HEADER_SIZE] ^= 1
    assert not torn(bytes(flipped))  # a whole batch follows it
    assert not torn(b"# This is a text of more than sixty-one bytes, and certainly not a log file.\n")


# The recovery point


def test_damage_below_the_recovery_point_is_refused_not_cut() -> None:
    content, ends = written(0, 0, 0)
    flipped = bytearray(content)
    flipped[ends[1] + HEADER_SIZE] ^= 1
    with pytest.raises(CorruptBatch, match=r"up to offset 2, but records up to 4 were flushed.*not a torn tail"):
        reopened(bytes(flipped), recovery_point=4)
    assert reopened(bytes(flipped), recovery_point=2).log_end_offset == 2


def test_a_flushed_batch_in_doubt_is_kept_and_the_log_opens() -> None:
    content, _ends = written(4, 0)
    assert values(reopened(content, recovery_point=2)) == [b"0", b"1"]


def test_a_file_that_lost_flushed_batches_is_refused() -> None:
    content, ends = written(0, 0)
    with pytest.raises(CorruptBatch, match="The file ends early"):
        reopened(content[: ends[1]], recovery_point=4)


def test_a_file_of_another_base_offset_is_refused_as_damage() -> None:
    content, _ends = written(0)
    assert recovered(content, base_offset=10).log_end_offset == 10


# Power failures


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.sampled_from([NEVER, EVERY_APPEND, FlushPolicy(interval_messages=5)]),
    st.integers(0, 2**32),
    st.integers(1, 3),
)
def test_flushed_records_survive_any_power_failure(
    sizes: list[int], policy: FlushPolicy, seed: int, cycles: int
) -> None:
    chance = Random(seed)
    files = MemoryFiles()
    history: list[bytes] = []
    for _ in range(cycles):
        log = LogFile.open(files, "a.log", flush_policy=policy)
        # What is left is a prefix of what was written, and holds everything that was flushed.
        assert values(log) == history[: log.log_end_offset]
        history = history[: log.log_end_offset]
        for size in sizes:
            batch = [b"%d" % chance.randrange(10**9) for _ in range(size)]
            log.append(small_batch(*batch))
            history += batch
        flushed_offset = log.flushed_offset
        files.crash(chance)
        assert LogFile.open(files, "a.log").log_end_offset >= flushed_offset
