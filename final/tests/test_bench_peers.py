"""Claims about `make bench-peers`: its client in C, the rows that need no other broker, and the table on the site."""

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from minibroker.bench import Context, Skipped
from minibroker.bench.__main__ import main
from minibroker.bench.context import open_context
from peers import load, nats, page, rabbitmq
from peers.load import Load, Rounds
from peers.streaming import BLOCK

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "final/peers"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    with open_context(directory=tmp_path) as opened:
        yield opened


@pytest.fixture
def _compiler() -> None:
    try:
        load.program()
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("_compiler")
def test_the_client_times_every_record_of_a_rate_and_of_a_window(context: Context) -> None:
    client = Load(context, "test.mock.num.brokers=1")
    for words in (("produce", "mock", 1, 100, 50, 10_000, 0), ("produce", "mock", 1, 100, 50, 0, 1)):
        report = client.run(*words)
        assert (report["records"], report["refused"]) == (100, 0), words
        assert 0 < report["p50_us"] <= report["p99_us"] <= report["max_us"] <= report["wall_us"], words
    # A hundred records at ten thousand a second are due within ten milliseconds.
    assert client.run("produce", "mock", 1, 100, 50, 10_000, 0)["wall_us"] >= 9_000


@pytest.mark.usefixtures("_compiler")
def test_a_client_that_cannot_go_on_says_so_and_ends(context: Context, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildProcessError, match="the load program ended during: dance"):
        Load(context, "test.mock.num.brokers=1").run("dance")
    assert "unknown command: dance" in capfd.readouterr().err


@pytest.mark.usefixtures("_compiler")
def test_rows_run_beside_the_mock_broker_and_with_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    rows = ["latency", "sustained-groups"]
    chosen = [word for row in rows for word in ("--only", row)]
    assert main([str(ROWS), *chosen, "--out", str(tmp_path / "out"), "--dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Apache Kafka is skipped: a quick run starts no other broker." in printed
    assert [it["name"] for it in page.documents(tmp_path / "out")] == rows
    page.main(tmp_path / "out")
    table = capsys.readouterr().out
    assert len(re.findall(r"\b(?:met|missed)\b", table)) == 6, table


def test_a_row_is_skipped_in_one_line_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([str(ROWS), "--only", "produce-1kb", "--dir", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("benchmark produce-1kb is skipped: its client needs a C compiler (cc)")


@pytest.mark.parametrize("other", [nats, rabbitmq], ids=["nats", "rabbitmq"])
def test_a_broker_with_another_protocol_acknowledges_every_message(context: Context, other: ModuleType) -> None:
    """It is started with an empty stream, which a round fills and the next round replaces."""
    publisher = other.publisher(context, 100)
    if publisher is None:
        pytest.skip(f"{other.PACKAGE} is not installed")
    for _round in range(2):
        publisher.empty()
        publisher.publish(20 * BLOCK)


def test_without_these_brokers_their_row_is_skipped_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for other in (nats, rabbitmq):
        monkeypatch.setattr(other, "find", lambda _program, _folder: None)
    assert main([str(ROWS), "--only", "others", "--dir", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("benchmark others is skipped: it needs nats-server or rabbitmq-server")


def test_confirmations_are_counted_in_frames_that_arrive_in_pieces() -> None:
    def confirmed(count: int) -> bytes:
        return rabbitmq.frame(rabbitmq.CONFIRM, struct.pack(">BI", 0, count) + bytes(8 * count))

    arrived = confirmed(3) + confirmed(1) + confirmed(70)
    for size in (1, 5, 1000):
        counter = rabbitmq.Confirmations()
        pieces = [arrived[start : start + size] for start in range(0, len(arrived), size)]
        assert sum(counter.count(piece) for piece in pieces) == 74, size
    with pytest.raises(AssertionError, match="a frame with key 0x4 instead of a confirmation"):
        rabbitmq.Confirmations().count(rabbitmq.frame(4, b""))


def test_rounds_leave_out_the_warm_up() -> None:
    mine, theirs = Rounds(), Rounds()
    mine.reports += [{"p50_us": it, "wall_us": 10**6} for it in (900, 10, 20, 30)]
    theirs.reports += [{"p50_us": it} for it in (1, 20, 20, 20)]
    assert mine.us("p50_us") == (20, 15, 25)
    assert mine.ratio(theirs, "p50_us").median == 1
    assert mine.spread_percent("p50_us") == 50
    assert mine.per_s(500).median == 500


def test_the_tables_on_the_site_are_those_of_their_documents() -> None:
    for where, regions in {"README.md": 1, "docs/index.md": 1, "docs/peers.md": 2}.items():
        text = (ROOT / where).read_text(encoding="utf-8")
        assert (text, text.count(": begin -->")) == (page.with_figures(text, ROOT / "docs/peers"), regions), where
    for document in page.documents(ROOT / "docs/peers"):
        assert f"`{document['name']}`" in text, "the page says what each row does"


def test_a_bar_becomes_a_row_with_its_bound_and_its_verdict(tmp_path: Path) -> None:
    spread = {"median": 0.9, "low": 0.8, "high": 1.0}
    bar = {"promise": "ours: speed ratio ≥ 0.8 (beside mock)", "at_least": 0.8, "at_most": None, "measured": spread}
    fact = {"name": "p99", "unit": "ms", "value": 12, "at_least": None, "at_most": 10, "met": False}
    unbounded = fact | {"at_most": None}
    document = {"name": "three", "bars": [bar | {"met": True}], "facts": [fact, unbounded]}
    (tmp_path / "three.json").write_text(json.dumps(document))
    assert page.table_of(tmp_path) == [
        ["three", "ours: speed ratio (beside mock)", "0.900", "0.800–1.00", "≥ 0.8", "met"],
        ["three", "p99: ms", "12.0", "", "≤ 10", "**missed**"],
    ]
