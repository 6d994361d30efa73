"""Draws the concepts of this chapter: a request's bytes, keys and partitions, the answer to a fetch, waiting requests.

Run it with `python chapters/03-partitions/bench/draw_partitions.py docs/chapters/03-partitions/figures`.
"""

import sys
from pathlib import Path

from minibroker.bench.pictures import BOX, MARGIN, Cell, legend, mark, note, save, strip
from minibroker.client.partitioners import partition_of
from minibroker.wire.headers import frame_request
from minibroker.wire.tables.api_versions import ApiVersionsRequest

PLAIN, SECOND, GOOD, FOUND, GONE, FADED = "0", "1", "2", "4", "limit", 0.35
WIDTH = 752


def draw_request(folder: Path) -> None:
    """The bytes of an ApiVersions request in version 0, from the encoder itself."""
    (frame,) = frame_request(ApiVersionsRequest(), version=0, correlation_id=7, client_id="hand")
    assert isinstance(frame, bytearray)
    fields = [("length of the rest: 14", 4, GONE), ("api key: 18", 2, FOUND), ("version: 0", 2, FOUND),
              ("correlation id: 7", 4, SECOND), ("4 letters", 2, PLAIN), ("hand", 4, PLAIN)]  # fmt: skip
    cells, at = [], 0
    for name, size, colour in fields:
        for index in range(size):
            cells.append(Cell(f"{frame[at]:02x}", 39, colour, name if index == size // 2 else ""))
            at += 1
    assert at == len(frame)
    colours = [
        (GONE, "the frame"),
        (FOUND, "what is asked"),
        (SECOND, "the answer repeats it"),
        (PLAIN, "the client id"),
    ]
    body = [
        *legend(colours, y=58),
        *strip(cells, y=76),
        note("The message would follow. ApiVersions has none in version 0.", y=188),
    ]
    save(folder, "request-bytes", "A request, 18 bytes", "The bytes of an ApiVersions request and their meaning.",
         size=(WIDTH, 206), body=body)  # fmt: skip


def draw_keys(folder: Path) -> None:
    """Where keys go with four partitions, and with six."""
    names = ("alice", "bob", "carol", "dave", "erin", "frank", "uma", "ivan", "walter")
    body, y = [], 64
    moved = {name for name in names if partition_of(name.encode(), 4) != partition_of(name.encode(), 6)}
    for count in (4, 6):
        body.append(note(f"{count} partitions: murmur2(key) & 0x7fffffff, modulo {count}", y=y, class_="label"))
        width = (WIDTH - 2 * MARGIN) / count
        homes: dict[int, list[str]] = {index: [] for index in range(count)}
        for name in names:
            homes[partition_of(name.encode(), count)].append(name)
        body += strip([Cell(f"partition {index}", width, PLAIN) for index in homes], y=y + 10)
        for index, living in homes.items():
            for row, name in enumerate(living):
                colour = SECOND if name in moved else GOOD
                body += strip([Cell(name, width - 16, colour)], x=MARGIN + index * width + 8, y=y + 54 + 42 * row)
        y += 74 + 42 * max(len(living) for living in homes.values())
    body += legend([(GOOD, "stays"), (SECOND, "goes elsewhere; its old records stay where they are")], y=y)
    save(folder, "keys", "A key goes to one partition, until the topic grows", "Keys in four and in six partitions.",
         size=(WIDTH, y + 18), body=body)  # fmt: skip


def draw_fetch(folder: Path) -> None:
    """What the answer to a fetch takes from a partition."""
    cells = [Cell("0-4", 110, PLAIN, opacity=FADED), Cell("5-9", 110, GOOD), Cell("10-14", 110, GOOD),
             Cell("15-19", 55, SECOND), Cell("", 55, PLAIN, opacity=FADED), Cell("20-24", 110, PLAIN, opacity=FADED),
             Cell("25-29", 110, GONE, opacity=FADED)]  # fmt: skip
    body = [
        *strip(cells, y=104),
        *mark("offset 7 is asked for", x=MARGIN + 154, y=86, bottom=108 + BOX),
        *mark("partition_max_bytes", x=MARGIN + 385, y=86, bottom=108 + BOX),
        *mark("high watermark 25", x=MARGIN + 550, y=86, bottom=108 + BOX),
        *legend([(GOOD, "whole batches"), (SECOND, "cut off: the client skips it"), (GONE, "not visible yet")], y=176),
        note("The answer begins with the batch that holds offset 7. The consumer drops offsets 5 and 6 itself.", y=200),
    ]
    save(folder, "fetch-slice", "The answer to a fetch is a slice of a file", "Batches of a partition and a slice.",
         size=(WIDTH, 218), body=body)  # fmt: skip


def draw_waiting(folder: Path) -> None:
    """The table of requests that wait."""
    body = [
        note("by key: who waits for what", y=64, class_="label"),
        *strip([Cell("orders-0", 130, PLAIN), Cell("fetch A", 110, GOOD), Cell("fetch C", 110, SECOND)], y=74),
        *strip([Cell("orders-1", 130, PLAIN), Cell("fetch C", 110, SECOND)], y=118),
        *strip([Cell("bills-0", 130, PLAIN), Cell("fetch B", 110, FOUND)], y=162),
        note("by deadline: one heap, and one timer for its first entry", y=230, class_="label"),
        *strip([Cell("12:00:01 fetch B", 150, FOUND), Cell("12:00:03 fetch A", 150, GOOD),
                Cell("12:00:04 fetch C", 150, SECOND)], y=240),
        note("An append to orders-1 marks its key as woken. When the request is done, fetch C is tried again.", y=306),
    ]  # fmt: skip
    save(folder, "waiting-table", "A table in place of a thousand tasks", "Requests that wait, by key and by deadline.",
         size=(WIDTH, 324), body=body)  # fmt: skip


if __name__ == "__main__":
    for draw in (draw_request, draw_keys, draw_fetch, draw_waiting):
        draw(Path(sys.argv[1]))
