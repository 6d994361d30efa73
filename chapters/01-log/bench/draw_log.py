"""Draws the concepts of this chapter: the bytes of a record, what a crash leaves, the three offsets.

Run it with `python chapters/01-log/bench/draw_log.py docs/chapters/01-log/figures`.
"""

import sys
from pathlib import Path

from minibroker.bench.pictures import BOX, MARGIN, Cell, legend, mark, note, save, strip
from minibroker.log.record import encode_record

GOOD, CUT, ZEROS, PLAIN = "2", "4", "limit", "0"


def draw_record(folder: Path) -> None:
    """The sixteen bytes of a record, from the encoder itself."""
    data = encode_record(offset_delta=0, timestamp_delta=0, key=b"alice", value=b"book")
    fields = [("length 15", 1, "1"), ("attributes", 1, "limit"), ("time delta 0", 1, "1"), ("offset delta 0", 1, "1"),
              ("key length 5", 1, "1"), ("alice", 5, "0"), ("value length 4", 1, "1"), ("book", 4, "0"),
              ("headers: 0", 1, "1")]  # fmt: skip
    cells, at = [], 0
    for name, size, colour in fields:
        for index in range(size):
            below = name if index == size // 2 else ""
            cells.append(Cell(f"{data[at]:02x}", 44, colour, below))
            at += 1
    assert at == len(data)
    body = [
        *legend([("1", "varint"), ("limit", "one byte, unused"), ("0", "the caller's bytes")], y=58),
        *strip(cells, y=76),
        note(
            "The length comes first and counts the 15 bytes after it. Each text is preceded by its own length.", y=188
        ),
    ]
    description = "The sixteen bytes of a record with key alice and value book, and the name of each field."
    save(folder, "record", "One record, 16 bytes", description, size=(752, 206), body=body)


def draw_torn(folder: Path) -> None:
    """Four files after a power failure, and where recovery cuts each of them."""
    batch_a, batch_b, batch_c = ((f"batch {name}", 170) for name in "ABC")
    zeros = ("00 00 00 00", 170)
    rows = [
        ("the write finished", [batch_a, batch_b, batch_c], 3),
        ("the write was torn", [batch_a, batch_b, ("half of C", 85)], 2),
        ("the file grew, the data did not arrive", [batch_a, batch_b, zeros], 2),
        ("B's page is missing, C's arrived", [batch_a, zeros, batch_c], 1),
    ]
    body, y = legend([(GOOD, "kept"), (CUT, "cut off"), (ZEROS, "zeros, cut off")], y=58), 92
    for name, boxes, kept in rows:
        body.append(note(name, y=y))
        colours = [GOOD if at < kept else ZEROS if box is zeros else CUT for at, box in enumerate(boxes)]
        body += strip([Cell(*box, colour) for box, colour in zip(boxes, colours, strict=True)], y=y + 10)
        x = MARGIN + sum(width for _label, width in boxes[:kept])
        body += mark("", x=x, y=y + 4, bottom=y + 16 + BOX)
        y += 76
    body.append(note("Recovery keeps the batches before the orange line, and cuts the file there.", y=y + 4))
    description = (
        "Four states of a log file after a power failure. Each is cut before the first batch that is not valid."
    )
    save(folder, "torn", "What a power failure leaves, and where it is cut", description, size=(580, y + 22), body=body)


def draw_offsets(folder: Path) -> None:
    """The three offsets of a log, over its batches."""
    sizes = [("0-2", 150), ("3-3", 80), ("4-7", 190), ("8-8", 80), ("9-11", 150)]
    cells = [Cell(f"offsets {name}" if width > 90 else name, width, GOOD if at < 3 else "1")
             for at, (name, width) in enumerate(sizes)]  # fmt: skip
    ends = [MARGIN + sum(width for _name, width in sizes[:count]) for count in (0, 3, 5)]
    body = strip(cells, y=92)
    labels = (("log start 0", "start"), ("flushed 8", "middle"), ("log end 12", "end"))
    for (label, anchor), x in zip(labels, ends, strict=True):
        body += mark(label, x=x, y=82, bottom=96 + BOX, anchor=anchor)
    body += legend(
        [(GOOD, "on the disk: survives a power failure"), ("1", "in the page cache: survives kill -9")], y=160
    )
    body.append(note("Offset 12 does not exist yet: it is the offset that the next record will get.", y=184))
    description = "Five batches. The first three are flushed, the last two are only in the page cache."
    save(folder, "offsets", "Three offsets of a log", description, size=(712, 202), body=body)


if __name__ == "__main__":
    for draw in (draw_record, draw_torn, draw_offsets):
        draw(Path(sys.argv[1]))
