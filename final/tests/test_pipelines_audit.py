"""The pipeline audit finds planted losses, repetitions and disorder, as the checker in one process does."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusters import Tally

from minibroker.clients.producer import Producer
from minibroker.pipelines import histories
from minibroker.pipelines.errors import PipelineError
from minibroker.pipelines.histories import Counts, Example, Findings

if TYPE_CHECKING:
    from spark_fixtures import Topics

pytest_plugins = ["clients_fixtures", "spark_fixtures"]


def line(topic: str, partition: int, sequence: int, offset: int | None, error: str | None = None) -> str:
    fields = {"producer": "p", "topic": topic, "partition": partition, "sequence": sequence, "offset": offset}
    return json.dumps(fields | {"sent_ms": 1000, "acked_ms": 2000 + 10 * sequence, "error": error}) + "\n"


def planted(count: int, chance: random.Random) -> tuple[list[int], dict[int, int | None]]:
    """A log and its acknowledgements: some records are lost, there twice, moved, or at another offset."""
    log = list(range(count))
    for _ in range(5):
        log.insert(chance.randrange(len(log)), chance.choice(log))
        place = chance.randrange(len(log) - 1)
        log[place], log[place + 1] = log[place + 1], log[place]
    acked: dict[int, int | None] = {number: place for place, number in enumerate(log) if chance.random() < 0.9}
    acked |= {count + number: None for number in range(3)} | {log[7]: 8, log[9]: None}
    return log, acked


def test_an_audit_finds_what_the_checker_in_one_process_finds(topics: "Topics", tmp_path: Path) -> None:
    from minibroker.pipelines import audit

    topic, expected, chance = topics.create(2), {}, random.Random(1)
    lines: list[str] = [line(topic, 0, 9_000, None, "refused"), line(topic, 1, 9_001, None, "timed out")]
    with Producer(topics.client) as producer:
        for partition in range(2):
            log, acked = planted(200, chance)
            for number in log:
                producer.send(topic, b"%d" % number, partition=partition)
            lines += [line(topic, partition, number, offset) for number, offset in acked.items()]
            expected[topic, partition] = tallied(log, acked)
    chance.shuffle(lines)
    history = tmp_path / "history.jsonl"
    history.write_text("".join(lines))
    assert histories.first_topic(history) == topic
    found = audit.run(topics.spark, audit.Audit(topics.address, history))
    assert found.partitions == expected
    assert min(found.total.lost, found.total.twice, found.total.out_of_order, found.total.elsewhere) > 0
    assert Example("lost", topic, 1, 202) in found.examples
    assert sum(count for _, count in found.acked_per_second) == found.total.acked


def tallied(log: Sequence[int], acked: dict[int, int | None]) -> Counts:
    """What the checker of `make chaos` says."""
    tally = Tally()
    tally.add([b"%d" % it for it in log], {b"%d" % number: offset for number, offset in acked.items()})
    return Counts(tally.acked, len(log), tally.lost, tally.twice, tally.out_of_order, tally.elsewhere)


FOUND = Findings(
    {("t", 0): Counts(5, 5), ("t", 1): Counts(7, 6, 2, 1)},
    [Example("lost", "t", 1, 3), Example("twice", "t", 1, 4)],
    [(100, 9), (102, 3)],
    1200,
)


def test_a_report_has_the_counts_the_records_by_number_and_a_plot(tmp_path: Path) -> None:
    for name in ("report.html", "report.md"):
        histories.write_report(FOUND, tmp_path / name, history="h.jsonl")
        page = (tmp_path / name).read_text()
        assert "Acknowledgements were not true: 12 acknowledged, 11 in the log, 2 lost, 1 twice, 0 out of order" in page
        assert "Longest time without one: 1,200 ms. History: h.jsonl." in page
        assert "lost: t-1, number 3" in page
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert "![Acknowledged records](report.svg)" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.svg").read_text().count("<rect") == 1 + 2, "a panel, and a bar for each second"


def test_a_file_that_is_not_a_history_is_one_line_before_spark_starts(tmp_path: Path) -> None:
    for text in ("", "not json\n", "{}\n"):
        path = tmp_path / "h"
        path.write_text(text)
        with pytest.raises(PipelineError, match=r"is not a history: `make chaos ARGS='--history FILE'` writes one$"):
            histories.first_topic(path)
