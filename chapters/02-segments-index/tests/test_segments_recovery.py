"""Opening a directory of segments after a clean shutdown, after a crash, and after worse."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from log_cases import each_case
from segments_model import read_on, values_batch

from minibroker.log.batch import BatchHeader, read_header, stamp
from minibroker.log.compression import Bytes
from minibroker.log.disk import OSFiles
from minibroker.log.errors import CorruptBatch, LogError, LogOffline
from minibroker.log.interfaces import FileSlice
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.segments import checkpoint
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import CLEAN_SHUTDOWN, RECOVERY_POINTS, DataDirectory
from minibroker.segments.segmented import SegmentedLog

DIRECTORY = "data/orders-0"
PARTITION = TopicPartition("orders", 0)
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)
ALL_OF_IT = 10**6


def written(count: int, config: LogConfig = SMALL) -> MemoryFiles:
    """A disk with a log of so many batches, valued b"0", b"1", … and never closed."""
    files = MemoryFiles()
    log = SegmentedLog.open(files, DIRECTORY, config)
    for n in range(count):
        log.append(values_batch(b"%d" % n, timestamp=10 * n))
    return files


def filled(data: DataDirectory, count: int, config: LogConfig = SMALL) -> SegmentedLog:
    """The log of the partition, open, with so many batches, valued b"0", b"1", …"""
    log = data.open_log(PARTITION, config)
    for n in range(count):
        log.append(values_batch(b"%d" % n))
    return log


def values(log: SegmentedLog) -> list[bytes]:
    return [record.value or b"" for record in read_on(log, log.log_start_offset)]


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, stop)]


def content(files: MemoryFiles, name: str) -> bytes:
    return files.open(f"{DIRECTORY}/{name}").pread(ALL_OF_IT, 0)


def log_names(files: MemoryFiles) -> list[str]:
    return [name for name in files.list(DIRECTORY) if name.endswith(".log")]


class CountingFiles(MemoryFiles):
    """Counts the bytes that are read."""

    def __init__(self, of: MemoryFiles) -> None:
        super().__init__()
        self.__dict__.update(of.__dict__)
        self.read_bytes = 0

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:
        file = super().open(path, create=create, writable=writable)
        pread = file.pread

        def counted(count: int, position: int) -> bytes:
            data = pread(count, position)
            self.read_bytes += len(data)
            return data

        file.pread = counted  # type: ignore[method-assign]
        return file


# How much is read


def test_after_a_clean_shutdown_only_the_tail_is_read() -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, DIRECTORY, LogConfig(segment_bytes=20_000, index_interval_bytes=500))
    for n in range(1000):
        log.append(values_batch(b"%d" % n))
    log.close()
    counting = CountingFiles(files)
    log = SegmentedLog.open(counting, DIRECTORY, log.config, is_clean=True)
    assert log.log_end_offset == 1000
    assert counting.read_bytes < 1500


def test_after_a_crash_reading_begins_at_the_recovery_point() -> None:
    files = written(1000, LogConfig(segment_bytes=20_000, index_interval_bytes=500))
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
    read = {}
    for recovery_point in (0, 500, 990):
        counting = CountingFiles(files)
        log = SegmentedLog.open(counting, DIRECTORY, config, recovery_point=recovery_point)
        assert log.log_end_offset == 1000
        read[recovery_point] = counting.read_bytes
    assert read[0] > 70_000
    assert read[500] < 0.6 * read[0]
    assert read[990] < 5_000


# Damage


def test_a_tail_torn_at_any_byte_costs_only_the_torn_batch() -> None:
    whole = written(9)
    name = log_names(whole)[-1]
    size = len(content(whole, name))
    for cut in range(size + 1):
        files = written(9)
        files.open(f"{DIRECTORY}/{name}").truncate(cut)
        log = SegmentedLog.open(files, DIRECTORY, SMALL)
        assert values(log) == numbers(0, log.log_end_offset), cut
        assert log.log_end_offset >= int(name[:20])
        assert log.append(values_batch(b"%d" % log.log_end_offset)) == log.log_end_offset - 1
        assert values(log) == numbers(0, log.log_end_offset)


def test_damage_in_a_segment_removes_the_segments_after_it() -> None:
    files = written(30)
    second = log_names(files)[1]
    file = files.open(f"{DIRECTORY}/{second}")
    file.pwrite(b"\xff", file.size() - 1)
    log = SegmentedLog.open(files, DIRECTORY, SMALL)
    assert log_names(files) == [f"{0:020}.log", second]
    assert values(log) == numbers(0, log.log_end_offset)
    assert log.log_end_offset > int(second[:20])


def test_a_missing_segment_removes_the_segments_after_it() -> None:
    files = written(30)
    files.unlink(f"{DIRECTORY}/{log_names(files)[1]}")
    log = SegmentedLog.open(files, DIRECTORY, SMALL)
    assert len(log.segments) == 1
    assert values(log) == numbers(0, log.log_end_offset)


def test_damage_below_the_recovery_point_is_refused_and_nothing_is_changed() -> None:
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=10_000)
    files = written(30, config)
    (name,) = log_names(files)
    file = files.open(f"{DIRECTORY}/{name}")
    file.pwrite(b"\xff", file.size() // 3)
    before = content(files, name)
    with pytest.raises(CorruptBatch, match=r"readable up to offset 10, but records up to 29 were.*not a torn tail"):
        SegmentedLog.open(files, DIRECTORY, config, recovery_point=29)
    assert content(files, name) == before
    assert SegmentedLog.open(files, DIRECTORY, config, recovery_point=10).log_end_offset == 10


def test_a_segment_below_the_recovery_point_is_not_read() -> None:
    files = written(30)
    names = log_names(files)
    file = files.open(f"{DIRECTORY}/{names[0]}")
    file.pwrite(b"\xff", file.size() - 1)
    log = SegmentedLog.open(files, DIRECTORY, SMALL, recovery_point=int(names[1][:20]))
    assert log.log_end_offset == 30


def copy_batch(log: SegmentedLog, value: bytes, base_offset: int) -> None:
    """Append a batch as a follower does: at the offset that the leader gave it."""
    batch = values_batch(value)
    stamp(batch, base_offset=base_offset, leader_epoch=0)
    log.append_as_follower(memoryview(batch))


def follower_with_gaps(gaps: list[int], config: LogConfig = SMALL) -> MemoryFiles:
    """The log of a follower whose leader is compacted: so many offsets are missing before each batch."""
    files = MemoryFiles()
    log = SegmentedLog.open(files, DIRECTORY, config)
    for n, gap in enumerate(gaps):
        copy_batch(log, b"%d" % n, log.log_end_offset + gap)
    return files


def test_gaps_are_no_damage_whatever_the_policy_is_now() -> None:
    files = follower_with_gaps([0, 5, 0, 0, 9, 9, 1, 0, 0, 3, 0])
    log = SegmentedLog.open(files, DIRECTORY, SMALL)
    assert values(log) == numbers(0, 11)


def test_a_gap_before_the_last_batch_is_valid_only_in_a_compacted_topic() -> None:
    gaps = [0, 0, 0, 1000]
    assert values(SegmentedLog.open(follower_with_gaps(gaps), DIRECTORY, SMALL)) == numbers(0, 3)
    compacted = LogConfig(segment_bytes=400, cleanup_policy=frozenset({"compact"}))
    assert values(SegmentedLog.open(follower_with_gaps(gaps), DIRECTORY, compacted)) == numbers(0, 4)


def test_every_flipped_bit_of_a_base_offset_is_found() -> None:
    config = LogConfig(segment_bytes=10_000)
    whole = content(written(6, config), f"{0:020}.log")
    size = len(whole) // 6
    for batch in range(6):
        for bit in range(64):
            files = written(6, config)
            flipped = bytearray(whole)
            flipped[batch * size + bit // 8] ^= 1 << bit % 8
            files.open(f"{DIRECTORY}/{0:020}.log").pwrite(bytes(flipped), 0)
            log = SegmentedLog.open(files, DIRECTORY, config)
            assert values(log) == numbers(0, batch), (batch, bit)


def test_a_wrong_index_entry_at_the_recovery_point_is_not_used() -> None:
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=100)
    files = written(60, config)
    index = files.open(f"{DIRECTORY}/{0:020}.index")
    index.pwrite(b"\x00\x00\x00\x05\x00\x00\x00\x07", 0)
    log = SegmentedLog.open(files, DIRECTORY, config, recovery_point=10)
    assert values(log) == numbers(0, 60)


def test_a_lost_time_index_is_built_anew_from_the_start_of_its_segment() -> None:
    """Checking from the recovery point on would bring back only the times of the last batches."""
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=100)
    files = MemoryFiles()
    log = SegmentedLog.open(files, DIRECTORY, config)
    for n in range(40):
        log.append(values_batch(b"%d" % n, timestamp=9000 if n == 3 else n))
    log.flush()
    files.unlink(f"{DIRECTORY}/{0:020}.timeindex")
    log = SegmentedLog.open(files, DIRECTORY, config, recovery_point=log.flushed_offset)
    found = log.find_time(5000)
    assert found is not None
    assert found.offset == 3


def test_an_index_longer_than_its_log_is_cut_to_it() -> None:
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=100)
    files = written(60, config)
    SegmentedLog.open(files, DIRECTORY, config).close()
    log_file = files.open(f"{DIRECTORY}/{0:020}.log")
    log_file.truncate(log_file.size() // 2)
    log = SegmentedLog.open(files, DIRECTORY, config)
    end = log.log_end_offset
    assert end == 30
    for n in range(end, end + 20):
        log.append(values_batch(b"%d" % n, timestamp=10 * n))
    assert values(log) == numbers(0, end + 20)
    found = log.find_time(10 * end + 5)
    assert found is not None
    assert found.offset == end + 1


@each_case("is_clean", [True, False])
def test_an_empty_last_segment_does_not_forget_the_epoch(is_clean: bool) -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, DIRECTORY, SMALL)
    log.append(values_batch(b"0"), leader_epoch=7)
    log.roll()
    log.close()
    assert SegmentedLog.open(files, DIRECTORY, SMALL, is_clean=is_clean, recovery_point=1).leader_epoch == 7


def test_a_log_without_records_after_its_start_begins_anew_there() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    filled(data, 20).delete_before(20)
    files.fsync_directory(DIRECTORY)
    files.crash()
    log = DataDirectory(files, "data").open_log(PARTITION, SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    assert log.append(values_batch(b"20")) == 20


def test_a_missing_segment_is_noticed_after_a_clean_shutdown() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    filled(data, 20)
    data.close()
    files.unlink(f"{DIRECTORY}/{log_names(files)[-1]}")
    with pytest.raises(CorruptBatch, match="records up to 20 were flushed"):
        DataDirectory(files, "data").open_log(PARTITION, SMALL)


@each_case("is_renamed", [True, False])
def test_the_indexes_of_a_replaced_segment_never_stay_beside_its_replacement(is_renamed: bool) -> None:
    # Killed in the middle of a swap: the log of the cleaned segment has its new suffix, or only its indexes have.
    config = LogConfig(segment_bytes=100_000, index_interval_bytes=100)
    files = written(30, config)
    SegmentedLog.open(files, DIRECTORY, config).close()
    for suffix in (".log", ".index", ".timeindex"):
        whole = content(files, f"{0:020}{suffix}")
        is_swap = is_renamed if suffix == ".log" else True
        files.open(f"{DIRECTORY}/{0:020}{suffix}{'.swap' if is_swap else '.cleaned'}").pwrite(whole, 0)
    for suffix in (".index", ".timeindex"):  # those of the original are shorter
        files.open(f"{DIRECTORY}/{0:020}{suffix}").truncate(12 * 2 if suffix == ".timeindex" else 8 * 2)
    # Compaction has removed the aborted records of the original, so its file of aborted transactions goes, too.
    files.open(f"{DIRECTORY}/{0:020}.txnindex").pwrite(bytes(34), 0)
    if is_renamed:
        files.unlink(f"{DIRECTORY}/{0:020}.index.swap")
        files.unlink(f"{DIRECTORY}/{0:020}.timeindex.swap")
    log = SegmentedLog.open(files, DIRECTORY, config, is_clean=True)
    # The indexes of the original had two entries; those of the replacement are built from its log.
    assert log.segments[0].indexes.offsets.count > 2 or not is_renamed
    found = log.find_time(285) if is_renamed else log.find_time(0)
    assert found is not None
    assert found.offset == (29 if is_renamed else 0)
    assert [name for name in files.list(DIRECTORY) if name.endswith((".swap", ".cleaned"))] == []
    assert (f"{0:020}.txnindex" in files.list(DIRECTORY)) is not is_renamed


def test_leftover_files_are_removed_at_start() -> None:
    files = written(10)
    of_no_log = (f"{77:020}.index", f"{77:020}.timeindex", f"{77:020}.txnindex")
    for name in (f"{0:020}.log.cleaned", f"{0:020}.index.cleaned", *of_no_log):
        files.open(f"{DIRECTORY}/{name}").pwrite(b"junk", 0)
    SegmentedLog.open(files, DIRECTORY, SMALL)
    assert [name for name in files.list(DIRECTORY) if "cleaned" in name or "77" in name] == []


class Witness(Companion):
    """A companion that records its events, and has saved the batches before `kept_offset`."""

    def __init__(self, kept_offset: int = 0) -> None:
        self.kept_offset = kept_offset
        self.heard: list[tuple[str, int]] = []

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        self.heard.append(("restore", log_end_offset))
        return self.kept_offset

    def replay(self, header: BatchHeader, batch: FileSlice) -> None:
        self.heard.append(("replay", header.base_offset))

    def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
        self.heard.append(("append", header.base_offset))

    def on_flush(self, offset: int) -> None:
        self.heard.append(("flush", offset))

    def on_roll(self, base_offset: int) -> None:
        self.heard.append(("roll", base_offset))

    def on_truncate(self, offset: int) -> None:
        self.heard.append(("truncate", offset))

    def on_delete(self, offset: int) -> None:
        self.heard.append(("delete", offset))

    def on_close(self, offset: int) -> None:
        self.heard.append(("close", offset))


def replayed(witness: Witness) -> list[int]:
    return [offset for what, offset in witness.heard if what == "replay"]


def test_a_companion_hears_of_everything_in_order() -> None:
    witness = Witness(kept_offset=2)
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL, companions=[witness])
    for n in range(6):
        log.append(values_batch(b"%d" % n))
    log.truncate(4)
    log.delete_before(2)
    log.close()
    assert witness.heard == [
        ("restore", 0),
        *(("append", n) for n in range(5)),
        ("roll", 5),
        ("flush", 5),
        ("append", 5),
        ("truncate", 4),
        ("restore", 4),
        ("replay", 2),
        ("replay", 3),
        ("delete", 2),
        ("close", 4),
    ]


def test_a_companion_gets_the_batch_as_it_is_written_and_a_slice_of_it_when_it_is_replayed() -> None:
    """Chapter 06 reads the record of a marker; of all other batches a replay reads the headers alone."""

    class Reader(Witness):
        def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
            appended.append((position, bytes(batch)))

        def replay(self, header: BatchHeader, batch: FileSlice) -> None:
            assert batch.count == header.size
            replayed.append((batch.position, batch.read()))

    appended: list[tuple[int, bytes]] = []
    replayed: list[tuple[int, bytes]] = []
    files = MemoryFiles()
    log = SegmentedLog.open(files, DIRECTORY, SMALL, companions=[Reader()])
    for n in range(9):
        log.append(values_batch(b"%d" % n))
    SegmentedLog.open(files, DIRECTORY, SMALL, companions=[Reader()])
    assert len(appended) == 9
    assert replayed == appended


@each_case("is_clean", [True, False])
def test_batches_that_a_companion_did_not_save_are_replayed(is_clean: bool) -> None:
    """This holds after a clean start as well, and for batches below the recovery point, which are not checked."""
    files = written(30)
    for kept_offset in (0, 7, 20, 29, 30):
        witness = Witness(kept_offset)
        SegmentedLog.open(files, DIRECTORY, SMALL, recovery_point=25, is_clean=is_clean, companions=[witness])
        assert witness.heard[0] == ("restore", 30)
        assert replayed(witness) == list(range(kept_offset, 30))


def test_each_companion_is_replayed_only_the_batches_it_lacks() -> None:
    files = written(30)
    early, late = Witness(3), Witness(28)
    SegmentedLog.open(files, DIRECTORY, SMALL, log_start_offset=26, companions=[late, early])
    assert replayed(early) == [26, 27, 28, 29]
    assert replayed(late) == [28, 29]


def test_a_companion_forgets_everything_with_a_log_that_is_begun_anew() -> None:
    witness = Witness()
    log = SegmentedLog.open(written(9), DIRECTORY, SMALL, companions=[witness])
    witness.heard.clear()
    log.truncate_fully_and_start_at(50)
    assert witness.heard == [("truncate", 0), ("restore", 50)]


class Broken(Witness):
    """A companion that fails at a certain event."""

    def __init__(self, of: str | None = None) -> None:
        super().__init__()
        if of is not None:
            self.fail_at(of)

    def fail_at(self, of: str) -> None:
        setattr(self, of, self.fail)

    def fail(self, *_arguments: object, **_options: object) -> int:
        raise ZeroDivisionError("a bug of the companion")


@each_case("of", ["on_append", "on_roll", "on_truncate", "on_delete", "restore", "replay"])
def test_a_companion_that_fails_takes_the_log_offline(of: str) -> None:
    witness = Broken()
    log = SegmentedLog.open(written(9), DIRECTORY, SMALL, companions=[witness])
    witness.fail_at(of)
    works: dict[str, Callable[[], object]] = {
        "on_append": lambda: log.append(values_batch(b"9")),
        "on_roll": log.roll,
        "on_delete": lambda: log.delete_before(2),
    }
    with pytest.raises(LogOffline, match=r"derived from the log could not be updated .*ZeroDivisionError"):
        works.get(of, lambda: log.truncate(7))()
    assert log.failure is not None
    with pytest.raises(LogOffline, match="ZeroDivisionError"):
        log.append(values_batch(b"10"))


def test_a_log_whose_companion_cannot_be_restored_does_not_open() -> None:
    with pytest.raises(LogOffline, match="ZeroDivisionError"):
        SegmentedLog.open(written(9), DIRECTORY, SMALL, companions=[Broken("replay")])


def test_a_shutdown_is_not_clean_if_a_log_is_offline() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    log = data.open_log(PARTITION, SMALL, companions=[Broken("on_append")])
    with pytest.raises(LogOffline):
        log.append(values_batch(b"0"))
    data.close()
    assert not DataDirectory(files, "data").is_clean


# The data directory


def test_checkpoints_are_kafkas_text() -> None:
    offsets = {TopicPartition("orders", 1): 88, TopicPartition("orders", 0): 1523}
    assert checkpoint.encode(offsets) == b"0\n2\norders 0 1523\norders 1 88\n"
    assert checkpoint.decode(checkpoint.encode(offsets), "x") == offsets


def test_an_empty_checkpoint_has_no_entries() -> None:
    assert checkpoint.decode(b"", "x") == {}


def test_a_full_disk_leaves_the_old_checkpoint() -> None:
    files = MemoryFiles()
    checkpoint.write(files, "data/x", checkpoint.encode({PARTITION: 7}))
    files.room_bytes = 5
    with pytest.raises(OSError, match="no space"):
        checkpoint.write(files, "data/x", checkpoint.encode({PARTITION: 9}))
    assert checkpoint.read(files, "data/x") == {PARTITION: 7}


@each_case("text", [b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na zero 1\n", b"\xff"])
def test_a_damaged_checkpoint_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(LogError, match="data/x is not a checkpoint"):
        checkpoint.decode(text, "data/x")


@each_case("name", ["orders", "-0", "orders-", "orders-x", "orders-1.old"])
def test_a_directory_that_is_no_partitions_is_refused(name: str) -> None:
    with pytest.raises(LogError, match="TOPIC-NUMBER"):
        TopicPartition.of_directory(name)
    assert TopicPartition.of_directory("a-b-12") == TopicPartition("a-b", 12)


def test_a_clean_shutdown_counts_for_one_start() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    assert not data.is_clean
    filled(data, 20)
    data.close()
    files.crash()
    again = DataDirectory(files, "data")
    assert again.is_clean
    assert values(again.open_log(PARTITION, SMALL)) == numbers(0, 20)
    assert CLEAN_SHUTDOWN not in files.list("data")
    files.crash()
    assert not DataDirectory(files, "data").is_clean


def test_a_shutdown_is_not_clean_while_another_log_was_left_unchecked() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    data.open_log(PARTITION, SMALL).append(values_batch(b"x"))
    data.open_log(TopicPartition("orders", 1), SMALL).append(values_batch(b"y"))
    files.fsync_directory("data/orders-0")
    files.fsync_directory("data/orders-1")
    files.crash(Random(1))
    only_one = DataDirectory(files, "data")
    only_one.open_log(PARTITION, SMALL)
    only_one.close()
    assert not DataDirectory(files, "data").is_clean


@each_case("remove", [DataDirectory.delete_log, DataDirectory.set_aside])
def test_a_log_that_was_removed_is_not_missing_after_a_crash(remove: Callable[..., object]) -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    filled(data, 20)
    data.close()
    data = DataDirectory(files, "data")
    data.open_log(PARTITION, SMALL)
    remove(data, PARTITION)
    files.crash()
    assert DataDirectory(files, "data").missing == {}


def test_rolling_advances_the_recovery_point_checkpoint() -> None:
    files = MemoryFiles()
    log = DataDirectory(files, "data").open_log(PARTITION, SMALL)
    while len(log.segments) < 3:
        log.append(values_batch(b"x"))
    assert checkpoint.read(files, f"data/{RECOVERY_POINTS}") == {PARTITION: log.segments[-1].base_offset}


def test_truncating_below_the_recovery_point_moves_the_checkpoint_back_first() -> None:
    files = MemoryFiles()
    log = filled(DataDirectory(files, "data"), 20)
    log.flush()
    log.truncate(3)
    assert checkpoint.read(files, f"data/{RECOVERY_POINTS}") == {PARTITION: 3}
    log.append(values_batch(b"three"))
    log.flush()
    files.crash()
    assert values(DataDirectory(files, "data").open_log(PARTITION, SMALL)) == [*numbers(0, 3), b"three"]


def test_a_full_disk_does_not_keep_retention_from_making_room() -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=400, retention_ms=0)
    log = filled(DataDirectory(files, "data"), 20, config)
    files.room_bytes = 0
    full = DataDirectory(files, "data")
    log = full.open_log(PARTITION, config)
    assert log.retain(10**15) > 2
    assert [name for name in files.list("data") if name.endswith(".tmp")] == []
    files.room_bytes = None
    full.close()
    assert len(log_names(files)) == 1


def test_the_log_start_survives_a_restart() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    log = filled(data, 20)
    log.delete_before(7)
    log.flush()
    files.crash()
    again = DataDirectory(files, "data").open_log(PARTITION, SMALL)
    assert (again.log_start_offset, values(again)) == (7, numbers(7, 20))


def test_rolled_segments_are_flushed_on_a_thread_while_appends_go_on(tmp_path: Path) -> None:
    data_path = str(tmp_path / "data")
    with ThreadPoolExecutor(1) as pool:
        data = DataDirectory(OSFiles(), data_path, background=pool.submit)  # type: ignore[arg-type]
        log = data.open_log(PARTITION, SMALL)
        for n in range(300):
            log.append(values_batch(b"%d" % n))
            if n == 200:
                log.truncate(150)
                for again in range(150, 201):
                    log.append(values_batch(b"%d" % again))
        # Once the thread has done all its work, the log notices that when it is used next.
        pool.submit(lambda: None).result(timeout=60)
        assert log.flushed_offset == log.segments[-1].base_offset > 250
        data.close()
    assert checkpoint.read(OSFiles(), f"{data_path}/{RECOVERY_POINTS}") == {PARTITION: 300}
    again_data = DataDirectory(OSFiles(), data_path)
    assert again_data.is_clean
    assert values(again_data.open_log(PARTITION, SMALL)) == numbers(0, 300)
    again_data.close()


# Power failures at random


@each_case("seed", range(60))
def test_flushed_records_survive_any_power_failure(seed: int) -> None:
    chance = Random(seed)
    files = MemoryFiles()
    flush_messages = chance.choice([None, None, 1, 5])
    config = LogConfig(
        segment_bytes=chance.randrange(150, 900), index_interval_bytes=100, flush_messages=flush_messages
    )
    history: list[bytes] = []
    promised = 0
    for _ in range(6):
        log = DataDirectory(files, "data").open_log(PARTITION, config)
        assert log.log_end_offset >= promised
        assert values(log) == history[: log.log_end_offset]
        history = history[: log.log_end_offset]
        for _ in range(chance.randrange(30)):
            batch = [b"%d" % chance.randrange(10**6) for _ in range(chance.randrange(1, 4))]
            log.append(values_batch(*batch))
            history += batch
            if chance.random() < 0.05:
                log.flush()
            if chance.random() < 0.03:
                log.truncate(chance.randrange(log.log_start_offset, log.log_end_offset + 1))
                history = history[: log.log_end_offset]
        promised = log.flushed_offset
        files.crash(chance)


# Deleting a partition


def test_a_deleted_partition_leaves_no_files_and_no_checkpoints(tmp_path: Path) -> None:
    data = DataDirectory(OSFiles(), str(tmp_path))
    log = data.open_log(PARTITION, SMALL)
    other = data.open_log(TopicPartition("orders", 1), SMALL)
    for n in range(9):
        log.append(values_batch(b"%d" % n))
    held = log.read(0, bytes_max=1)
    before = held.read()
    data.delete_log(PARTITION)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["orders-1"]
    assert held.read() == before
    with pytest.raises(LogOffline, match="was deleted"):
        log.append(values_batch(b"late"))
    assert other.append(values_batch(b"0")) == 0
    assert data.partitions() == [TopicPartition("orders", 1)]
    data.close()
    assert DataDirectory(OSFiles(), str(tmp_path)).is_clean


def test_a_partition_of_the_same_name_inherits_nothing() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    filled(data, 20).delete_before(7)
    data.delete_log(PARTITION)
    log = data.open_log(PARTITION, SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    log.append(values_batch(b"new"))
    files.crash(Random(1))
    again = DataDirectory(files, "data").open_log(PARTITION, SMALL)
    assert again.log_start_offset == 0
    assert again.log_end_offset <= 1


def test_a_partition_of_the_same_name_inherits_nothing_after_two_kills_either() -> None:
    """The first kill comes before the checkpoints are written, the second after the new partition was made."""
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    log = filled(data, 20)
    log.flush()
    data.write(RECOVERY_POINTS)
    data.delete_log(PARTITION)
    DataDirectory(files, "data").open_log(PARTITION, SMALL).append(values_batch(b"new"))
    again = DataDirectory(files, "data").open_log(PARTITION, SMALL)
    assert (again.log_start_offset, again.log_end_offset) == (0, 1)


def test_a_crash_while_a_partition_is_deleted_leaves_all_of_it_or_nothing() -> None:
    class DyingFiles(MemoryFiles):
        """Loses power before an unlink, a rename or a flush of a directory of that number."""

        calls_left = 10**9

        def count(self) -> None:
            self.calls_left -= 1
            if self.calls_left < 0:
                self.crash()
                raise KeyboardInterrupt

        def unlink(self, path: str) -> None:
            self.count()
            super().unlink(path)

        def rename(self, source: str, target: str) -> None:
            self.count()
            super().rename(source, target)

        def fsync_directory(self, directory: str) -> None:
            self.count()
            super().fsync_directory(directory)

    ends = set()
    for calls in range(20):
        files = DyingFiles()
        data = DataDirectory(files, "data")
        log = filled(data, 12)
        log.flush()
        files.calls_left = calls
        try:
            data.delete_log(PARTITION)
        except KeyboardInterrupt:
            files.calls_left = 10**9
        files.calls_left = 10**9
        data = DataDirectory(files, "data")
        assert [name for name in files.list("data") if name.endswith("-delete")] == []
        assert data.partitions() in ([], [PARTITION])
        end = data.open_log(PARTITION, SMALL).log_end_offset
        ends.add(end)
    assert ends == {0, 12}


def test_what_is_not_the_directory_of_a_deleted_partition_stays() -> None:
    files = MemoryFiles()
    for name in ("orders-delete", f"orders.{'0' * 32}-delete", f"orders-0.{'0' * 31}-delete", f"o-0.{'0' * 32}-delete"):
        files.open(f"data/{name}/x")
    DataDirectory(files, "data")
    assert files.list("data") == [f"orders-0.{'0' * 31}-delete", "orders-delete", f"orders.{'0' * 32}-delete"]


# Settings that change


def test_other_settings_count_from_the_next_append_on() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, LogConfig())
    for n in range(3):
        log.append(values_batch(b"%d" % n, timestamp=1000))
    assert log.flushed_offset == 0
    log.configure(LogConfig(flush_messages=1))
    log.append(values_batch(b"3", timestamp=1000))
    assert log.flushed_offset == 4
    log.configure(LogConfig(segment_ms=500))
    log.append(values_batch(b"4", timestamp=1501))
    assert [segment.base_offset for segment in log.segments] == [0, 4]


class FlushCountingFiles(MemoryFiles):
    """Counts the flushes."""

    flushes = 0

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:
        file = super().open(path, create=create, writable=writable)
        fsync = file.fsync

        def counted() -> None:
            self.flushes += 1
            fsync()

        file.fsync = counted  # type: ignore[method-assign]
        return file

    def fsync_directory(self, directory: str) -> None:
        self.flushes += 1
        super().fsync_directory(directory)


def test_a_flush_is_one_flush_and_none_if_nothing_was_appended() -> None:
    files = FlushCountingFiles()
    log = SegmentedLog.open(files, DIRECTORY, SMALL)
    log.append(values_batch(b"0"))
    log.flush()
    log.append(values_batch(b"1"))
    files.flushes = 0
    log.flush()
    assert files.flushes == 1
    log.flush()
    assert files.flushes == 1


def test_a_second_close_does_not_flush_again() -> None:
    files = FlushCountingFiles()
    log = SegmentedLog.open(files, DIRECTORY, SMALL)
    log.append(values_batch(b"0"))
    log.close()
    files.flushes = 0
    SegmentedLog.open(files, DIRECTORY, SMALL, is_clean=True).close()
    assert files.flushes == 0


def test_the_name_of_a_log_is_flushed_with_its_first_flush_and_not_before() -> None:
    """A thousand partitions get their first record at once: that must not be thousands of flushes."""
    files = FlushCountingFiles()
    log = SegmentedLog.open(files, f"data/{DIRECTORY}", LogConfig())
    log.append(values_batch(b"0"))
    assert files.flushes == 0
    log.flush()
    files.crash()
    assert SegmentedLog.open(files, f"data/{DIRECTORY}", LogConfig()).log_end_offset == 1


@each_case("config", [LogConfig(flush_messages=1), LogConfig(segment_bytes=100)])
def test_a_new_log_that_flushes_by_itself_or_rolls_survives_a_power_failure(config: LogConfig) -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, f"data/{DIRECTORY}", config)
    for n in range(3):
        log.append(values_batch(b"%d" % n))
    promised = log.flushed_offset
    files.crash()
    assert promised > 0
    assert SegmentedLog.open(files, f"data/{DIRECTORY}", config).log_end_offset >= promised


def test_a_log_that_is_configured_to_flush_later_survives_a_power_failure() -> None:
    files = MemoryFiles()
    log = SegmentedLog.open(files, f"data/{DIRECTORY}", LogConfig())
    log.append(values_batch(b"0"))
    log.configure(LogConfig(flush_ms=1))
    log.tick(0)
    log.tick(1)
    assert log.flushed_offset == 1
    files.crash()
    assert SegmentedLog.open(files, f"data/{DIRECTORY}", LogConfig()).log_end_offset == 1


def test_an_undamaged_log_is_opened_after_a_kill_without_a_flush() -> None:
    files = FlushCountingFiles()
    log = SegmentedLog.open(files, DIRECTORY, LogConfig())
    log.append(values_batch(b"0"))
    log.flush()
    log.append(values_batch(b"1"))
    files.flushes = 0
    again = SegmentedLog.open(files, DIRECTORY, LogConfig(), recovery_point=1)
    assert (files.flushes, again.log_end_offset, again.flushed_offset) == (0, 2, 1)
    again.flush()
    files.crash()
    assert SegmentedLog.open(files, DIRECTORY, LogConfig(), recovery_point=2).log_end_offset == 2


def test_a_torn_end_is_cut_off_durably() -> None:
    files = FlushCountingFiles()
    log = SegmentedLog.open(files, DIRECTORY, LogConfig())
    log.append(values_batch(b"0"))
    size = log.size
    log.append(values_batch(b"1"))
    files.open(f"{DIRECTORY}/{0:020}.log").truncate(log.size - 1)
    again = SegmentedLog.open(files, DIRECTORY, LogConfig())
    assert (again.log_end_offset, again.flushed_offset) == (1, 1)
    files.crash()
    assert files.open(f"{DIRECTORY}/{0:020}.log").size() == size


def test_the_recovery_point_waits_for_a_companion_that_could_not_write() -> None:
    class Refused(Witness):
        is_refused = True

        def on_flush(self, offset: int) -> None:
            super().on_flush(offset)
            if self.is_refused:
                raise OSError(errno.ENOSPC, "no space left on device")

    files, companion = MemoryFiles(), Refused()
    data = DataDirectory(files, "data")
    log = data.open_log(PARTITION, companions=[companion])
    log.append(values_batch(b"0"))
    log.flush()
    assert data.remembered(RECOVERY_POINTS, PARTITION) == 0
    companion.is_refused = False
    log.flush()
    assert data.remembered(RECOVERY_POINTS, PARTITION) == 1
    assert [it for it in companion.heard if it[0] == "flush"] == [("flush", 1), ("flush", 1)]


# Found with a disk that fails


def test_truncating_in_a_gap_moves_the_recovery_point_with_the_end() -> None:
    """Batches copied from a compacted leader have gaps; a log truncated in a gap ends before it, and opens again."""
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    log = data.open_log(PARTITION, LogConfig())
    for base_offset in (0, 1, 20, 21):
        copy_batch(log, b"x", base_offset)
    log.flush()
    log.truncate(10)
    assert log.log_end_offset == log.flushed_offset == 2
    files.crash()
    assert DataDirectory(files, "data").open_log(PARTITION).log_end_offset == 2


def test_a_log_truncated_in_a_gap_does_not_end_before_its_start() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, LogConfig())
    for base_offset in (0, 1, 20, 21):
        copy_batch(log, b"x", base_offset)
    log.delete_before(7)
    log.truncate(10)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def test_a_lost_first_segment_removes_the_segments_after_it() -> None:
    """Nothing of it was flushed, and the next segment happened to reach the disk: a log has no hole at its front."""
    files = written(9)
    first, second = log_names(files)
    files.open(f"{DIRECTORY}/{first}").truncate(0)
    log = SegmentedLog.open(files, DIRECTORY, SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert second not in log_names(files)


def test_a_marker_whose_removal_was_not_flushed_does_not_come_back() -> None:
    files = MemoryFiles()
    data = DataDirectory(files, "data")
    data.open_log(PARTITION, SMALL).append(values_batch(b"0"))
    data.close()
    files.unlink(f"data/{CLEAN_SHUTDOWN}")  # a start that died right here
    DataDirectory(files, "data").open_log(PARTITION, SMALL)
    files.crash()
    assert not DataDirectory(files, "data").is_clean


def test_a_batch_that_was_checked_is_not_checked_again() -> None:
    log = SegmentedLog.open(MemoryFiles(), DIRECTORY, SMALL)
    batch = values_batch(b"0")
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        log.append(batch)
    assert log.append(batch, header=read_header(batch)) == 0
