"""Claims about the labs of chapter 02, and about the sparse logs that they and the benchmarks look into."""

import random
from pathlib import Path

import pytest
from labs import lab_index, lab_retention
from labs_run import run_lab
from log_cases import each_case

from minibroker.bench.measure import Case, Results, Sample
from minibroker.bench.measure import Result as Measured
from minibroker.log.batch import batches
from minibroker.log.disk import OSFiles
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import START_MS, SparseLog, batch_of

TRAFFIC = lab_retention.Traffic(kept_minutes=10)


@pytest.mark.parametrize("name", ["index", "retention"])
def test_a_lab_writes_its_figure_and_its_document_and_cleans_up(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_lab(name, tmp_path, monkeypatch)["chapter"] == "02"


# The lab `index`.


def measured(us_by_interval: dict[int, float]) -> Results:
    cases = [
        (Case(lab_index.index_case(series, interval), lambda: None, operations_count=1), us)
        for interval, us in us_by_interval.items()
        for series in (lab_index.BY_OFFSET, lab_index.BY_TIME)
    ]
    return {case.name: Measured(case, (Sample(us / 1e6, 0.0),)) for case, us in cases}


def test_the_index_lab_reads_its_figures_in_plain_english() -> None:
    densities = [lab_index.Density(512, 30), lab_index.Density(4096, 5), lab_index.Density(65536, 0.5)]
    denser, sparser, knee = lab_index.index_reading(densities, measured({512: 15, 4096: 20, 65536: 80}))
    assert "makes the index 6.00 times as large (30.0 against 5.00 MB for a GB of log)" in denser
    assert "takes 0.750 of the time" in denser
    assert "10.0 times smaller, and a lookup takes 4.00 times as long: it walks over 128 batches" in sparser
    assert "has an entry per 4 KiB: 5.00 MB for a GB of log" in knee


def test_a_denser_index_is_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run_lab("index", tmp_path, monkeypatch)["table"]["rows"]
    assert [row[0] for row in rows] == ["512 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB"]
    sizes = [float(row[1]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


# The lab `retention`.


def test_retention_by_time_keeps_every_record_for_its_time() -> None:
    samples = lab_retention.play(lab_retention.settings(TRAFFIC)[lab_retention.TIME_ONLY], TRAFFIC)
    assert lab_retention.past_least(samples, TRAFFIC) >= TRAFFIC.kept_minutes
    assert lab_retention.disk_peak(samples) > 3 * samples[TRAFFIC.burst.start - 1].disk_bytes


@each_case("setting", [lab_retention.SIZE_ONLY, lab_retention.BOTH])
def test_retention_by_size_bounds_the_disk_and_shortens_the_past(setting: str) -> None:
    config = lab_retention.settings(TRAFFIC)[setting]
    samples = lab_retention.play(config, TRAFFIC)
    # The oldest segment goes when the rest is enough; and the active one never goes.
    assert lab_retention.disk_peak(samples) < config.retention_bytes + 2 * config.segment_bytes
    assert lab_retention.past_least(samples, TRAFFIC) < TRAFFIC.kept_minutes


def test_the_stricter_of_both_settings_decides() -> None:
    played = {name: lab_retention.play(config, TRAFFIC) for name, config in lab_retention.settings(TRAFFIC).items()}
    for by_time, by_size, both in zip(
        *(played[name] for name in (lab_retention.TIME_ONLY, lab_retention.SIZE_ONLY, lab_retention.BOTH)), strict=True
    ):
        assert both.disk_bytes == min(by_time.disk_bytes, by_size.disk_bytes)


def test_the_retention_lab_reads_its_figures_in_plain_english() -> None:
    def samples(usual: int, peak: int, past: float, past_in_burst: float) -> list[lab_retention.Sample]:
        busy = range(TRAFFIC.burst.start, TRAFFIC.burst.stop + 7)
        return [
            lab_retention.Sample(n, peak * 10**6, past_in_burst)
            if n in busy
            else lab_retention.Sample(n, usual * 10**6, past)
            for n in range(TRAFFIC.minutes)
        ]

    by_time, by_size, both = lab_retention.retention_reading(
        {
            lab_retention.TIME_ONLY: samples(4, 20, 11, 10),
            lab_retention.SIZE_ONLY: samples(6, 7, 15, 2),
            lab_retention.BOTH: samples(4, 8, 11, 3),
        },
        TRAFFIC,
    )
    assert "4.00 MB become 20.0, 5.00 times as much, and are back to normal 7 minutes after the burst" in by_time
    assert "never holds more than 7.00 MB" in by_size
    assert "can go back 2.00 minutes instead of 15.0" in by_size
    assert "At most 8.00 MB, and in the burst 3.00 minutes; in quiet times 4.00 MB" in both


# Sparse logs.


@each_case("batch_bytes", [256, 1000, 5000])
def test_a_sparse_log_has_the_files_of_a_real_one(batch_bytes: int, tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=60_000)
    sparse = SparseLog(OSFiles(), str(tmp_path / "sparse"), size=200_000, batch_bytes=batch_bytes, config=config)
    sparse.write()
    sparse.fill_from(0)
    real = SegmentedLog.open(OSFiles(), str(tmp_path / "real"), config)
    for path in sorted((tmp_path / "sparse").glob("*.log")):
        for batch in batches(path.read_bytes()):
            batch.check_crc()
            real.append(bytearray(batch.view))
    assert real.log_end_offset == sparse.log_end_offset
    real.close()
    names = sorted(path.name for path in (tmp_path / "real").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "sparse").iterdir())
    for name in names:
        assert (tmp_path / "real" / name).read_bytes() == (tmp_path / "sparse" / name).read_bytes(), name


@each_case("batch_bytes", [256, 16_384])
def test_what_was_filled_in_a_sparse_log_is_found(batch_bytes: int, tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=10**6)
    sparse = SparseLog(OSFiles(), str(tmp_path / "log"), size=10**7, batch_bytes=batch_bytes, config=config)
    sparse.write()
    offsets = random.Random(0).choices(range(sparse.log_end_offset), k=50)
    for offset in offsets:
        sparse.fill(offset)
    log = SegmentedLog.open(OSFiles(), sparse.directory, config, is_clean=True)
    assert log.log_end_offset == sparse.log_end_offset
    assert log.size == sparse.size
    for offset in offsets:
        record = log.find_time(START_MS + offset)
        assert record is not None
        assert record.offset == offset
        first = next(batches(log.read(offset, bytes_max=1).read()))
        assert first.header.base_offset <= offset <= first.header.last_offset
    log.close()


def test_a_size_that_no_batch_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch has exactly 60 bytes"):
        batch_of(60)
