"""Everything that can happen to a log, in any order, checked against a plain list."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from segments_model import batch_of, read_on

from minibroker.log.compression import Compression
from minibroker.log.memory import MemoryFiles
from minibroker.log.record import Record
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.compaction import clean
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.scrub import Finding, scrub

PARTITION = TopicPartition("orders", 0)
CONFIG = LogConfig(
    segment_bytes=500,
    index_interval_bytes=120,
    retention_ms=4000,
    delete_retention_ms=1000,
    cleanup_policy=frozenset({"compact", "delete"}),
)
RECORDS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | st.binary(max_size=30), st.integers(-50, 50)),
    min_size=1,
    max_size=4,
)


class LogBesideAList(RuleBasedStateMachine):
    """`model` has every record that must be readable, without those that compaction or retention may have removed."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.now_ms = 100_000
        self.all: dict[int, Record] = {}  # every record that is in the log or was
        self.open()

    def open(self) -> None:
        self.data = DataDirectory(self.files, "data")
        self.log = self.data.open_log(PARTITION, CONFIG)

    # What clients do

    @rule(records=RECORDS, compression=st.sampled_from([Compression.NONE, Compression.ZSTD]))
    def append(self, records: list[tuple[bytes, bytes | None, int]], compression: Compression) -> None:
        self.now_ms += 100
        given = [Record(0, self.now_ms + jitter, key, value) for key, value, jitter in records]
        base_offset = self.log.append(batch_of(given, compression))
        self.all |= {base_offset + n: record._replace(offset=base_offset + n) for n, record in enumerate(given)}

    @rule(chance=st.randoms(use_true_random=False), bytes_max=st.integers(1, 800))
    def read_from_somewhere(self, chance: Random, bytes_max: int) -> None:
        offset = chance.randint(self.log.log_start_offset, self.log.log_end_offset)
        for record in read_on(self.log, offset, bytes_max=bytes_max):
            assert record == self.all[record.offset]._replace(headers=())

    @rule(back_ms=st.integers(-100, 6000))
    def find_a_time(self, back_ms: int) -> None:
        timestamp = self.now_ms - back_ms
        readable = read_on(self.log, self.log.log_start_offset)
        expected = next((record for record in readable if record.timestamp >= timestamp), None)
        found = self.log.find_time(timestamp)
        assert (found and found.offset) == (expected and expected.offset)

    # What the broker does

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(passed_ms=st.integers(0, 2000))
    def retain(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.log.retain(self.now_ms)

    @rule(map_bytes=st.sampled_from([24 * 8, 4096]))
    def compact(self, map_bytes: int) -> None:
        cleaned = clean(
            self.log,
            first_dirty_offset=self.data.first_dirty_offset(PARTITION),
            now_ms=self.now_ms,
            map_bytes_max=map_bytes,
        )
        self.data.set_first_dirty_offset(PARTITION, cleaned.first_dirty_offset)

    @rule(chance=st.randoms(use_true_random=False))
    def truncate(self, chance: Random) -> None:
        # A leader truncates nothing that was compacted: records after the watermark are never cleaned.
        first = max(self.log.log_start_offset, self.data.first_dirty_offset(PARTITION))
        self.log.truncate(chance.randint(min(first, self.log.log_end_offset), self.log.log_end_offset))
        self.all = {offset: record for offset, record in self.all.items() if offset < self.log.log_end_offset}

    @rule(chance=st.randoms(use_true_random=False))
    def delete_records(self, chance: Random) -> None:
        self.log.delete_before(chance.randint(self.log.log_start_offset, self.log.log_end_offset))

    # What happens to machines

    @rule()
    def restart(self) -> None:
        self.data.close()
        before = self.log.log_end_offset
        self.open()
        assert self.data.is_clean
        assert self.log.log_end_offset == before

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        flushed_offset = self.log.flushed_offset
        self.files.crash(Random(seed))
        self.open()
        assert self.log.log_end_offset >= flushed_offset
        self.all = {offset: record for offset, record in self.all.items() if offset < self.log.log_end_offset}

    @precondition(lambda self: len(self.log.segments) > 1)
    @rule()
    def lose_an_index(self) -> None:
        self.data.close()
        for suffix in (".index", ".timeindex"):
            self.files.unlink(f"data/{PARTITION.directory}/{self.log.segments[0].base_offset:020}{suffix}")
        self.open()
        assert self.log.segments[0].indexes.is_sane()  # built anew when first used

    # What must always be true

    @invariant()
    def the_newest_record_of_each_key_is_there(self) -> None:
        readable = {record.offset: record for record in read_on(self.log, self.log.log_start_offset)}
        assert all(record == self.all[offset]._replace(headers=()) for offset, record in readable.items())
        newest = {record.key: record for record in self.all.values() if record.offset >= self.log.log_start_offset}
        for record in newest.values():
            is_tombstone = record.value is None  # which may have expired
            assert is_tombstone or readable[record.offset].value == record.value

    @invariant()
    def the_offsets_stand_in_order(self) -> None:
        log = self.log
        assert log.segments[0].base_offset <= log.log_start_offset <= log.log_end_offset
        assert log.flushed_offset <= log.log_end_offset

    @invariant()
    def a_scrub_finds_nothing(self) -> None:
        assert [event for event in scrub(self.files, self.log) if isinstance(event, Finding)] == []


LogBesideAList.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_a_log_agrees_with_a_list_through_everything = LogBesideAList.TestCase
