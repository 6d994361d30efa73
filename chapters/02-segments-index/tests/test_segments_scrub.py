"""The scrub: which flips are found, exactly which are not, and that the log may change under it."""

import struct
from collections.abc import Callable, Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case

from minibroker.log.batch import LEADER_EPOCH_AT, BatchBuilder, BatchHeader
from minibroker.log.logfile import NEVER
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.log.recovery import CHUNK_BYTES, Recovered, headers
from minibroker.segments.config import COMPACT, LogConfig
from minibroker.segments.loading import CLEANED
from minibroker.segments.scrub import Finding, Pace, Progress, rebuild_index, scrub
from minibroker.segments.segment import SUFFIXES, Segment
from minibroker.segments.segmented import SegmentedLog

TIME = 1_700_000_000_000
DENSE = LogConfig(segment_bytes=400, index_interval_bytes=100)
COMPACTED = LogConfig(segment_bytes=400, index_interval_bytes=100, cleanup_policy=frozenset({COMPACT}))
NEXT_EPOCH_OF_NOTHING = 2**31 - 1


def batch(base_offset: int, leader_epoch: int, count: int = 1) -> memoryview:
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=leader_epoch)
    for number in range(count):
        # Times rise, fall and stand still.
        builder.append(timestamp=TIME + base_offset % 7 * 10 + number, key=None, value=b"%d" % (base_offset + number))
    return memoryview(builder.build())


def log_of(files: MemoryFiles, config: LogConfig, *, gap: int, epochs: Sequence[int]) -> SegmentedLog:
    log = SegmentedLog.open(files, "t-0", config)
    for number, epoch in enumerate(epochs):
        log.append_as_follower(batch(log.log_end_offset + (gap if number % 3 else 0), epoch, count=1 + number % 2))
    return log


def dense_log(files: MemoryFiles) -> SegmentedLog:
    return log_of(files, DENSE, gap=0, epochs=[4, 4, 4, 4, 6, 6, 6, 9, 9, 9, 9, 9, 9, 9, 13])


def compacted_log(files: MemoryFiles) -> SegmentedLog:
    return log_of(files, COMPACTED, gap=5, epochs=[2] * 15)


def findings(files: MemoryFiles, log: SegmentedLog) -> list[Finding]:
    return [step for step in scrub(files, log) if isinstance(step, Finding)]


def closed(log: SegmentedLog) -> Sequence[Segment]:
    return log.segments[:-1]


def bits(file: MemoryFile) -> range:
    return range(8 * file.size())


def flip(file: MemoryFile, bit: int) -> None:
    (byte,) = file.pread(1, bit // 8)
    file.pwrite(bytes([byte ^ 1 << bit % 8]), bit // 8)


def unfound(files: MemoryFiles, log: SegmentedLog, segment: Segment, suffix: str) -> set[int]:
    """Flip each bit of a file, one at a time, and scrub: the bits that made no finding."""
    file = files.open(segment.path(suffix))
    missed = set()
    for bit in bits(file):
        flip(file, bit)
        found = findings(files, log)
        if not found:
            missed.add(bit)
        assert len(found) <= 2, f"one flip, many findings: {found}"
        flip(file, bit)
    return missed


# What is found ------------------------------------------------------------------------------------------------------


@each_case("make", [dense_log, compacted_log])
def test_a_sound_log_has_no_findings_and_every_file_is_read(make: Callable[[MemoryFiles], SegmentedLog]) -> None:
    files = MemoryFiles()
    log = make(files)
    assert len(closed(log)) == 2
    steps = list(scrub(files, log))
    assert all(isinstance(step, Progress) for step in steps)
    read = {step.path for step in steps}
    assert read == {segment.path(suffix) for segment in closed(log) for suffix in SUFFIXES}


def neighbours(log: SegmentedLog) -> Iterator[tuple[Segment, int, BatchHeader | None, BatchHeader, BatchHeader | None]]:
    """Each batch with its place, the one before and the one after it, across segments."""
    walked = [(segment, position, header) for segment in log.segments for position, header in segment.walk()]
    for number, (segment, position, header) in enumerate(walked):
        before = walked[number - 1][2] if number else None
        after = walked[number + 1][2] if number + 1 < len(walked) else None
        yield segment, position, before, header, after


def epoch_bits_between_neighbours(log: SegmentedLog, of: Segment) -> set[int]:
    """The flips of leader epochs that leave an epoch possible: not below the one before, not above the one after."""
    possible = set()
    for segment, position, before, header, after in neighbours(log):
        low = before.leader_epoch if before else -1
        high = after.leader_epoch if after else NEXT_EPOCH_OF_NOTHING
        for bit in range(32):
            (flipped,) = struct.unpack(">i", struct.pack(">I", (header.leader_epoch & 0xFFFFFFFF) ^ 1 << bit))
            if segment is of and low <= flipped <= high:
                byte = position + LEADER_EPOCH_AT + 3 - bit // 8
                possible.add(8 * byte + bit % 8)
    return possible


def offset_bits_within_gaps(log: SegmentedLog, of: Segment) -> set[int]:
    """The flips of base offsets that move a batch within the gap around it, and that no index entry gives away."""
    possible = set()
    entries = [of.indexes.offsets.entry(slot)[1] for slot in range(of.indexes.offsets.count)]
    entries += [
        position
        for slot in range(of.indexes.times.count)
        for position, header in of.walk()
        if header.last_offset == of.base_offset + of.indexes.times.entry(slot)[1]
    ]
    for segment, position, before, header, after in neighbours(log):
        if segment is not of or position in entries:
            continue
        low = max(before.next_offset if before and position else 0, of.base_offset)
        next_base = next((s.base_offset for s in log.segments if s.base_offset > of.base_offset), 2**62)
        high = min(after.base_offset if after else 2**62, next_base)
        for bit in range(63):
            flipped = header.base_offset ^ 1 << bit
            if low <= flipped and flipped + header.last_offset_delta < high:
                possible.add(8 * (position + 7 - bit // 8) + bit % 8)
    return possible


@each_case("number", [0, 1])
def test_every_flip_in_a_dense_log_is_found_but_epochs_that_fit_between_their_neighbours(number: int) -> None:
    files = MemoryFiles()
    log = dense_log(files)
    segment = closed(log)[number]
    possible = epoch_bits_between_neighbours(log, segment)
    assert unfound(files, log, segment, ".log") == possible
    # They are few: bits of the batches that begin an epoch, and of the first batch of the log.
    assert 0 < len(possible) < 10


def test_where_the_epoch_does_not_change_every_flip_is_found() -> None:
    files = MemoryFiles()
    log = log_of(files, DENSE, gap=0, epochs=[0] * 15)
    assert unfound(files, log, closed(log)[1], ".log") == set()


@each_case("number", [0, 1])
def test_in_a_compacted_log_a_batch_may_also_move_within_its_gap(number: int) -> None:
    files = MemoryFiles()
    log = compacted_log(files)
    segment = closed(log)[number]
    possible = offset_bits_within_gaps(log, segment) | epoch_bits_between_neighbours(log, segment)
    assert unfound(files, log, segment, ".log") == possible
    assert possible


@each_case("suffix", [".index", ".timeindex"])
@each_case("number", [0, 1])
def test_every_flip_in_an_index_is_found(number: int, suffix: str) -> None:
    files = MemoryFiles()
    log = dense_log(files)
    segment = closed(log)[number]
    assert files.open(segment.path(suffix)).size() > 0
    assert unfound(files, log, segment, suffix) == set()


def test_a_damaged_batch_is_one_finding_with_its_place_and_what_to_do() -> None:
    files = MemoryFiles()
    log = dense_log(files)
    segment = closed(log)[0]
    (_first, (position, header), *_rest) = segment.walk()
    flip(files.open(segment.path(".log")), 8 * (position + header.size - 2))
    (finding,) = findings(files, log)
    assert finding[:2] == (segment.path(".log"), position)
    assert finding.what.startswith("crc 0x")
    assert "replica" in finding.remedy


def test_batches_after_a_damaged_one_are_still_checked() -> None:
    files = MemoryFiles()
    log = dense_log(files)
    damaged = []
    for segment in closed(log):
        for position, header in list(segment.walk())[1::2]:
            flip(files.open(segment.path(".log")), 8 * (position + header.size - 2))
            damaged.append((segment.path(".log"), position))
    assert [finding[:2] for finding in findings(files, log)] == damaged


def test_a_batch_that_cannot_be_read_ends_the_check_of_its_segment_only() -> None:
    files = MemoryFiles()
    log = dense_log(files)
    for segment in closed(log):
        files.open(segment.path(".log")).pwrite(b"\x07", 16)  # the first batch's magic
    found = findings(files, log)
    assert [finding.path for finding in found] == [segment.path(".log") for segment in closed(log)]
    assert all("not checked" in finding.what for finding in found)


def test_a_closed_segment_that_was_cut_is_found() -> None:
    files = MemoryFiles()
    log = dense_log(files)
    segment = closed(log)[1]
    *_others, (position, _header) = segment.walk()
    files.open(segment.path(".log")).truncate(position)
    found = findings(files, log)
    assert any("the next segment" in finding.what for finding in found)


# Indexes ------------------------------------------------------------------------------------------------------------


@each_case("suffix", [".index", ".timeindex"])
def test_a_damaged_index_is_only_reported_and_rebuilt_on_request(suffix: str) -> None:
    files = MemoryFiles()
    log = dense_log(files)
    file = files.open(closed(log)[0].path(suffix))
    sound = file.pread(1000, 0)
    flip(file, 30)
    (finding,) = findings(files, log)
    assert file.pread(1000, 0) != sound
    assert "rebuild" in finding.remedy
    assert rebuild_index(log, finding)
    assert file.pread(1000, 0) == sound
    assert findings(files, log) == []


def test_a_damaged_batch_is_nothing_to_rebuild() -> None:
    files = MemoryFiles()
    log = dense_log(files)
    assert not rebuild_index(log, Finding(closed(log)[0].path(".log"), 0, "crc"))


@each_case(
    ("damage", "what"),
    [
        (lambda file: file.truncate(file.size() - 5), "not a multiple of 12"),
        (lambda file: file.truncate(file.size() - 12), "ends before the largest timestamp"),
        (lambda file: file.truncate(file.size() + 1200), "1200 zero bytes at the end"),
    ],
)
def test_an_index_of_a_wrong_size_is_found(damage: Callable[[MemoryFile], None], what: str) -> None:
    files = MemoryFiles()
    log = dense_log(files)
    damage(files.open(closed(log)[0].path(".timeindex")))
    assert any(what in finding.what for finding in findings(files, log))


def test_a_missing_index_and_a_missing_log_are_found() -> None:
    files = MemoryFiles()
    log = dense_log(files)
    first, second = closed(log)
    files.unlink(first.path(".index"))
    files.unlink(second.path(".log"))
    assert [(finding.path, finding.what) for finding in findings(files, log)] == [
        (first.path(".index"), "missing"),
        (second.path(".log"), "cannot be read: no such file"),
    ]


def test_indexes_beside_a_damaged_log_are_not_reported() -> None:
    files = MemoryFiles()
    log = dense_log(files)
    segment = closed(log)[0]
    flip(files.open(segment.path(".log")), 8 * 23 + 7)  # last offset delta of the first batch
    assert {finding.path for finding in findings(files, log)} == {segment.path(".log")}


# While the log changes ----------------------------------------------------------------------------------------------


def steps_with(
    files: MemoryFiles, log: SegmentedLog, at_step: int, change: Callable[[], object]
) -> list[Progress | Finding]:
    """Scrub, and change the log after some step."""
    steps = []
    for number, step in enumerate(scrub(files, log)):
        steps.append(step)
        if number == at_step:
            change()
    return steps


AT_ANY_STEP = each_case("at_step", range(14))


@AT_ANY_STEP
def test_segments_may_be_deleted_during_a_scrub(at_step: int) -> None:
    files = MemoryFiles()
    log = dense_log(files)
    steps = steps_with(files, log, at_step, lambda: log.delete_before(log.segments[-1].base_offset))
    assert not [step for step in steps if isinstance(step, Finding)]


@AT_ANY_STEP
def test_the_log_may_be_truncated_during_a_scrub(at_step: int) -> None:
    files = MemoryFiles()
    log = dense_log(files)
    steps = steps_with(files, log, at_step, lambda: log.truncate(closed(log)[-1].base_offset + 1))
    assert not [step for step in steps if isinstance(step, Finding)]


@AT_ANY_STEP
def test_segments_may_be_replaced_during_a_scrub(at_step: int) -> None:
    files = MemoryFiles()
    log = compacted_log(files)

    def replace() -> None:
        old = closed(log)[0]
        new = Segment(files, "t-0", old.base_offset, COMPACTED, CLEANED)
        new.open_tail(Recovered(size=0, log_end_offset=old.base_offset), NEVER)
        # Fewer batches, so that every batch is at another position.
        for position, header in list(headers(old.file))[2:]:
            new.write(memoryview(bytearray(old.file.pread(header.size, position))), header)
        new.seal()
        new.flush()
        log.replace([old], new)

    steps = steps_with(files, log, at_step, replace)
    assert not [step for step in steps if isinstance(step, Finding)]
    assert findings(files, log) == []


@AT_ANY_STEP
def test_the_log_may_grow_and_roll_during_a_scrub(at_step: int) -> None:
    files = MemoryFiles()
    log = dense_log(files)

    def grow() -> None:
        for _ in range(10):
            log.append_as_follower(batch(log.log_end_offset, 13))

    steps = steps_with(files, log, at_step, grow)
    assert not [step for step in steps if isinstance(step, Finding)]
    # What was closed while the scrub was under way is read too.
    assert {step.path for step in steps} >= {segment.path(".log") for segment in closed(log)}


# Its pace -----------------------------------------------------------------------------------------------------------


def test_a_piece_is_never_larger_than_a_chunk_whatever_the_batch_claims() -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, "t-0", LogConfig(segment_bytes=5_000_000))
    builder = BatchBuilder()
    builder.append(timestamp=TIME, key=None, value=bytes(3 * CHUNK_BYTES))
    log.append(builder.build())
    log.roll()
    log.append(bytearray(batch(0, 0)))
    pieces = [step.bytes_read for step in scrub(files, log) if isinstance(step, Progress)]
    assert max(pieces) == CHUNK_BYTES
    assert sum(pieces) > 3 * CHUNK_BYTES


@given(
    st.integers(1, 10**9),
    st.lists(st.tuples(st.integers(1, CHUNK_BYTES), st.integers(0, 5000)), min_size=1, max_size=50),
)
def test_no_more_is_read_than_the_pace_allows(bytes_per_s: int, work: list[tuple[int, int]]) -> None:
    """However long the caller does other things in between."""
    pace = Pace(bytes_per_s)
    now_ms = start_ms = 1000.0
    for bytes_read, elsewhere_ms in work:
        wait_ms = pace.wait_ms(bytes_read, now_ms)
        assert wait_ms >= bytes_read * 1000 / bytes_per_s * 0.999
        now_ms += wait_ms + elsewhere_ms
    allowed = (now_ms - start_ms) / 1000 * bytes_per_s
    assert sum(bytes_read for bytes_read, _ in work) <= allowed * 1.001 + 1


def test_idle_time_is_not_saved_up_for_a_burst() -> None:
    pace = Pace(bytes_per_s=1000)
    assert pace.wait_ms(500, now_ms=0) == 500
    assert pace.wait_ms(500, now_ms=60_000) == 500
    assert pace.wait_ms(500, now_ms=60_100) == 900  # called early: the rest of the last pause is owed
