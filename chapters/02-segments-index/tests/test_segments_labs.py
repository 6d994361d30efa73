"""Claims about the labs of chapter 02, and about the sparse logs that they and the benchmarks look into."""

import json
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minibroker.bench.lab import find_labs
from minibroker.bench.measure import Case, Results, Sample
from minibroker.bench.measure import Result as Measured
from minibroker.cli.lab import lab
from minibroker.log.batch import batches
from minibroker.log.disk import OSFiles
from minibroker.segments import labs
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import START_MS, SparseLog, batch_of

TRAFFIC = labs.Traffic(kept_minutes=10)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")


def run(name: str, folder: Path) -> Result:
    (folder / "scratch").mkdir()
    return CliRunner().invoke(lab, ["run", name, "--out", str(folder / "out"), "--dir", str(folder / "scratch")])


def plain(text: str) -> str:
    """Without the line breaks that depend on the width."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", ["index", "retention"])
def test_a_lab_writes_its_figure_and_its_document_and_cleans_up(name: str, tmp_path: Path) -> None:
    assert find_labs()[name].chapter == "02"
    ended = run(name, tmp_path)
    assert ended.exit_code == 0, ended.output
    svg = (tmp_path / "out" / f"{name}.svg").read_text()
    ElementTree.fromstring(svg)
    text = (tmp_path / "out" / f"{name}.json").read_text()
    document = json.loads(text)
    assert document["quick"] is True
    assert all(paragraph in plain(ended.stdout) for paragraph in map(plain, document["reading"]))
    assert str(tmp_path) not in text
    assert list((tmp_path / "scratch").iterdir()) == []


# The lab `index`.


def measured(us_by_interval: dict[int, float]) -> Results:
    cases = [
        (Case(labs.index_case(series, interval), lambda: None, operations_count=1), us)
        for interval, us in us_by_interval.items()
        for series in (labs.BY_OFFSET, labs.BY_TIME)
    ]
    return {case.name: Measured(case, (Sample(us / 1e6, 0.0),)) for case, us in cases}


def test_the_index_lab_reads_its_figures_in_plain_english() -> None:
    densities = [labs.Density(512, 30), labs.Density(4096, 5), labs.Density(65536, 0.5)]
    denser, sparser, knee = labs.index_reading(densities, measured({512: 15, 4096: 20, 65536: 80}))
    assert "makes the index 6.00 times as large (30.0 against 5.00 MB for a GB of log)" in denser
    assert "takes 0.750 of the time" in denser
    assert "10.0 times smaller, and a lookup takes 4.00 times as long: it walks over 128 batches" in sparser
    assert "has an entry per 4 KiB: 5.00 MB for a GB of log" in knee


def test_a_denser_index_is_larger(tmp_path: Path) -> None:
    assert run("index", tmp_path).exit_code == 0
    rows = json.loads((tmp_path / "out" / "index.json").read_text())["table"]["rows"]
    assert [row[0] for row in rows] == ["512 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB"]
    sizes = [float(row[1]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


# The lab `retention`.


def test_retention_by_time_keeps_every_record_for_its_time() -> None:
    samples = labs.play(labs.settings(TRAFFIC)[labs.TIME_ONLY], TRAFFIC)
    assert labs.past_least(samples, TRAFFIC) >= TRAFFIC.kept_minutes
    assert labs.disk_peak(samples) > 3 * samples[TRAFFIC.burst.start - 1].disk_bytes


@pytest.mark.parametrize("setting", [labs.SIZE_ONLY, labs.BOTH])
def test_retention_by_size_bounds_the_disk_and_shortens_the_past(setting: str) -> None:
    config = labs.settings(TRAFFIC)[setting]
    samples = labs.play(config, TRAFFIC)
    # The oldest segment goes when the rest is enough; and the active one never goes.
    assert labs.disk_peak(samples) < config.retention_bytes + 2 * config.segment_bytes
    assert labs.past_least(samples, TRAFFIC) < TRAFFIC.kept_minutes


def test_the_stricter_of_both_settings_decides() -> None:
    played = {name: labs.play(config, TRAFFIC) for name, config in labs.settings(TRAFFIC).items()}
    for by_time, by_size, both in zip(
        *(played[name] for name in (labs.TIME_ONLY, labs.SIZE_ONLY, labs.BOTH)), strict=True
    ):
        assert both.disk_bytes == min(by_time.disk_bytes, by_size.disk_bytes)


def test_the_retention_lab_reads_its_figures_in_plain_english() -> None:
    def samples(usual: int, peak: int, past: float, past_in_burst: float) -> list[labs.Sample]:
        busy = range(TRAFFIC.burst.start, TRAFFIC.burst.stop + 7)
        return [
            labs.Sample(n, peak * 10**6, past_in_burst) if n in busy else labs.Sample(n, usual * 10**6, past)
            for n in range(TRAFFIC.minutes)
        ]

    by_time, by_size, both = labs.retention_reading(
        {
            labs.TIME_ONLY: samples(4, 20, 11, 10),
            labs.SIZE_ONLY: samples(6, 7, 15, 2),
            labs.BOTH: samples(4, 8, 11, 3),
        },
        TRAFFIC,
    )
    assert "4.00 MB become 20.0, 5.00 times as much, and are back to normal 7 minutes after the burst" in by_time
    assert "never holds more than 7.00 MB" in by_size
    assert "can go back 2.00 minutes instead of 15.0" in by_size
    assert "At most 8.00 MB, and in the burst 3.00 minutes; in quiet times 4.00 MB" in both


# Sparse logs.


@pytest.mark.parametrize("batch_bytes", [256, 1000, 5000])
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


@pytest.mark.parametrize("batch_bytes", [256, 16_384])
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
