"""Draws the concepts of this chapter: a lookup, the time index, retention, the recovery point, compaction.

Run it with `python chapters/02-segments-index/bench/draw_segments.py docs/chapters/02-segments-index/figures`.
"""

import sys
from pathlib import Path

from minibroker.bench.pictures import BOX, MARGIN, Cell, legend, mark, note, save, strip

PLAIN, OPEN, GOOD, FOUND, GONE, FADED = "0", "1", "2", "4", "limit", 0.35
WIDTH = 752


def draw_segment_lookup(folder: Path) -> None:
    """From all segments to one batch, in four steps."""
    steps = [
        ("1  Bisect the base offsets, which are in memory: segment 2000",
         ["0", "1000", "2000", "3000", "4000"], 2, 140),
        ("2  Bisect the first entries of the index's pages, which are in memory, too: the page that begins with 2400",
         ["2049", "2211", "2400", "2633"], 2, 175),
        ("3  Read that page, 4 KiB, and bisect it: the batch that ends with 2460 is at position 81920",
         ["2400", "2431", "2460", "2497", "2530"], 2, 140),
        ("4  Read 8 KiB from there, and hop from header to header: the third batch holds offset 2475",
         ["2451-2460", "2461-2470", "2471-2480", "2481-2490"], 2, 175),
    ]  # fmt: skip
    body, y = [note("Find offset 2475", y=56)], 84
    for text, labels, found, width in steps:
        body.append(note(text, y=y, class_="label"))
        cells = [Cell(label, width, FOUND if at == found else PLAIN, opacity=0.85 if at == found else FADED)
                 for at, label in enumerate(labels)]  # fmt: skip
        body += strip(cells, y=y + 10)
        y += 78
    body.append(note("The answer is a slice: a file, a position and a number of bytes. The records are not read.", y=y))
    save(folder, "segment-lookup", "A lookup in four steps", "Segments, pages, entries, batches.",
         size=(WIDTH, y + 18), body=body)  # fmt: skip


def draw_time_index(folder: Path) -> None:
    """Timestamps that jump, and their running maximum."""
    times, width = [10, 30, 20, 50, 40, 45, 70, 60], 84
    running = [max(times[: at + 1]) for at in range(len(times))]
    body = [
        note("max timestamp of each batch: producers' clocks disagree", y=64, class_="label"),
        *strip([Cell(str(time), width, PLAIN, f"offset {at}") for at, time in enumerate(times)], y=74),
        note("running maximum: sorted, so it can be bisected", y=160, class_="label"),
        *strip([Cell(str(most), width, GOOD if most == time else GONE, opacity=0.85 if most == time else FADED)
                for most, time in zip(running, times, strict=True)], y=170),
        note("A new maximum can become an entry. (50, 3) says: up to offset 3, no record is newer than 50.", y=236),
    ]  # fmt: skip
    save(folder, "time-index", "The time index holds a running maximum", "Eight batches and their running maximum.",
         size=(WIDTH, 256), body=body)  # fmt: skip


def draw_retention(folder: Path) -> None:
    """Segments on an axis of time, and the limit of retention.ms."""
    cells = [Cell("segment 0", 150, GONE, "youngest: 9 days old"), Cell("segment 500", 150, GONE, "8 days old"),
             Cell("segment 900", 150, GOOD, "6 days old"), Cell("segment 1400", 150, GOOD, "3 days old"),
             Cell("active", 104, PLAIN, "now")]  # fmt: skip
    body = [
        *legend([(GONE, "deleted"), (GOOD, "kept"), (PLAIN, "active: never deleted")], y=58),
        *strip(cells, y=84),
        *mark("", x=MARGIN + 300, y=76, bottom=84 + BOX + 8),
        note("retention.ms is 7 days. A segment's youngest record decides, so every record is kept that long.", y=168),
        note("The log start offset moves from 0 to 900. Deletion goes from the oldest to the newest.", y=190),
    ]  # fmt: skip
    save(folder, "retention-by-time", "Retention deletes whole segments", "Five segments, of which two are too old.",
         size=(WIDTH, 208), body=body)  # fmt: skip


def draw_recovery_point(folder: Path) -> None:
    """What a start reads after a crash."""
    cells = [Cell("segment 0", 130, GOOD, opacity=FADED), Cell("segment 500", 130, GOOD, opacity=FADED),
             Cell("flushed part", 170, GOOD, opacity=FADED), Cell("not flushed", 170, OPEN),
             Cell("torn", 70, FOUND)]  # fmt: skip
    edge = MARGIN + 430
    body = [
        *strip(cells, y=96),
        *mark("recovery point 1180", x=edge, y=82, bottom=100 + BOX),
        *mark("index entry", x=edge - 50, y=142 + BOX, bottom=100 + BOX, anchor="end"),
        note("trusted without rereading", x=MARGIN + 60, y=156),
        note("checked again", x=edge + 50, y=156),
        note("cut", x=edge + 194, y=156),
        note("The check begins at the last index entry before the recovery point, if that entry is right.", y=208),
    ]  # fmt: skip
    save(folder, "recovery-point", "After a crash, only the end is read", "Three segments and the recovery point.",
         size=(WIDTH, 226), body=body)  # fmt: skip


def draw_compaction(folder: Path) -> None:
    """A log before and after compaction."""
    records = [("a=1", 0), ("b=1", 0), ("a=2", 0), ("c=1", 1), ("b=∅", 1), ("a=3", 1), ("d=1", 1)]
    width = 100
    before = [Cell(label, width, GOOD if stays else GONE, str(at), 0.85 if stays else FADED)
              for at, (label, stays) in enumerate(records)]  # fmt: skip
    after = [Cell(label, width, GOOD, str(at)) for at, (label, stays) in enumerate(records) if stays]
    last = [
        Cell(label, width, GOOD, str(at)) for at, (label, stays) in enumerate(records) if stays and "∅" not in label
    ]
    body = [
        note("before: seven records, offsets 0 to 6", y=60, class_="label"),
        *strip(before, y=70),
        note("after: the newest record of each key, at its old offset", y=156, class_="label"),
        *strip(after, y=166),
        note("a day later: the tombstone of b is gone, too", y=252, class_="label"),
        *strip(last, y=262),
        note("A reader that starts at offset 0 gets the same table from all three: a=3, c=1, d=1.", y=344),
    ]
    save(folder, "compaction", "Compaction keeps the newest record of each key", "Records by key, before and after.",
         size=(WIDTH, 362), body=body)  # fmt: skip


if __name__ == "__main__":
    for draw in (draw_segment_lookup, draw_time_index, draw_retention, draw_recovery_point, draw_compaction):
        draw(Path(sys.argv[1]))
