"""The findings of a delivery audit: as a table, and as a page in HTML or Markdown with a plot. It needs no Spark."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from minibroker.pipelines.errors import PipelineError
from minibroker.simulation import svg

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 240, 64, 56, 36
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid #8884;text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){body{background:#16191f;color:#e6eaef}}"
)


class Counts(NamedTuple):
    """The counts of one partition, or of all."""

    acked: int = 0
    in_log: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    elsewhere: int = 0

    @property
    def is_well(self) -> bool:
        """Whether every acknowledgement was true."""
        return not (self.lost or self.twice or self.out_of_order or self.elsewhere)

    def text(self) -> str:
        """All counts in one line."""
        wrong = f"{self.lost:,} lost, {self.twice:,} twice, {self.out_of_order:,} out of order"
        return f"{self.acked:,} acknowledged, {self.in_log:,} in the log, {wrong}, {self.elsewhere:,} elsewhere"


class Example(NamedTuple):
    """One record that is not as its acknowledgement said."""

    problem: str
    topic: str
    partition: int
    sequence: int


class Findings(NamedTuple):
    """The result of an audit."""

    partitions: dict[tuple[str, int], Counts]
    examples: list[Example]
    acked_per_second: list[tuple[int, int]]
    longest_pause_ms: int

    @property
    def total(self) -> Counts:
        """The counts of all partitions together."""
        return Counts(*(sum(column) for column in zip(*self.partitions.values(), strict=True)))


def first_topic(history: Path) -> str:
    """Return the topic of the first line, which can be checked before Spark starts."""
    with history.open() as lines:
        try:
            return str(json.loads(next(lines))["topic"])
        except (StopIteration, ValueError, KeyError, TypeError):
            raise PipelineError(f"{history} is not a history: `make chaos ARGS='--history FILE'` writes one") from None


def rows_of(findings: Findings) -> tuple[Sequence[str], list[list[str]]]:
    """Return the titles and the rows of a table with one line per partition and one for all."""
    titles = ("partition", "acknowledged", "in the log", "lost", "twice", "out of order", "elsewhere")
    named: list[tuple[str, Counts]] = [
        *((f"{topic}-{partition}", counts) for (topic, partition), counts in findings.partitions.items()),
        ("all", findings.total),
    ]
    return titles, [[name, *(f"{count:,}" for count in counts)] for name, counts in named]


# The page -----------------------------------------------------------------------------------------------------------


def write_report(findings: Findings, path: Path, *, history: str) -> None:
    """Write a page; for Markdown, the plot is a file beside it."""
    if path.suffix == ".html":
        path.write_text(html(findings, history=history))
        return
    picture = path.with_suffix(".svg")
    picture.write_text(plot(findings))
    path.write_text(markdown(findings, history=history, picture=picture.name))


def html(findings: Findings, *, history: str) -> str:
    """Write a page that needs no other file."""
    titles, rows = rows_of(findings)
    head = "".join(f"<th>{escape(it)}</th>" for it in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(it)}</td>" for it in row) + "</tr>\n" for row in rows)
    wrong = "".join(f"<li>{escape(it)}</li>\n" for it in examples(findings))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Delivery audit</title><style>{_STYLE}</style>\n'
        f"<h1>Delivery audit</h1>\n<p>{escape(verdict(findings))} History: {escape(history)}.</p>\n{plot(findings)}"
        f"<table>\n<tr>{head}</tr>\n{body}</table>\n" + (f"<ul>\n{wrong}</ul>\n" if wrong else "") + "</html>\n"
    )


def markdown(findings: Findings, *, history: str, picture: str) -> str:
    """Write a page that shows the plot from a file beside it."""
    titles, rows = rows_of(findings)
    lines = [
        "# Delivery audit",
        "",
        f"{verdict(findings)} History: {history}.",
        "",
        f"![Acknowledged records]({picture})",
    ]
    lines += ["", f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    wrong = examples(findings)
    return "\n".join([*lines, *([""] if wrong else []), *(f"- {it}" for it in wrong)]) + "\n"


def verdict(findings: Findings) -> str:
    """Say in two sentences how it went."""
    word = "Every acknowledgement was true" if findings.total.is_well else "Acknowledgements were not true"
    return f"{word}: {findings.total.text()}. Longest time without one: {findings.longest_pause_ms:,} ms."


def examples(findings: Findings) -> list[str]:
    """Name the first records with each problem."""
    return [f"{it.problem}: {it.topic}-{it.partition}, number {it.sequence}" for it in findings.examples]


def plot(findings: Findings) -> str:
    """Draw the acknowledged records of each second."""
    counts = dict(findings.acked_per_second)
    first, last = (min(counts), max(counts)) if counts else (0, 0)
    span, highest = max(1, last - first + 1), max(counts.values(), default=1)
    width, height = (WIDTH - LEFT - 24) / span, HEIGHT - TOP - BOTTOM
    bars = []
    for second, count in sorted(counts.items()):
        tall = height * count / highest
        place = {"x": LEFT + (second - first) * width, "y": TOP + height - tall}
        bars.append(svg.element("rect", **place, width=max(0.5, width * 0.9), height=tall, class_="fill-0"))
    base = TOP + height
    body = [
        svg.text("Acknowledged records per second", x=24, y=30, class_="title"),
        svg.text(f"{highest:,}", x=LEFT - 8, y=TOP + 5, class_="tick", text_anchor="end"),
        svg.text("0", x=LEFT - 8, y=base + 4, class_="tick", text_anchor="end"),
        svg.line(LEFT, base, WIDTH - 24, base, "axis"),
        *bars,
        svg.text("0 s", x=LEFT, y=base + 20, class_="tick"),
        svg.text(f"{span} s", x=WIDTH - 24, y=base + 20, class_="tick", text_anchor="end"),
    ]
    about = f"{findings.total.acked:,} acknowledged records in {span} seconds, at most {highest:,} in one."
    return svg.document("Acknowledged records per second", about, WIDTH, HEIGHT, body)
