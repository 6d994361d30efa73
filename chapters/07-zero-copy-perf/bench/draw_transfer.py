"""Draws the concepts of this chapter: three ways to send, one send for an event, the line of answers, a quota's window.

Run it with `python chapters/07-zero-copy-perf/bench/draw_transfer.py docs/chapters/07-zero-copy-perf/figures`.
"""

import sys
from pathlib import Path

from minibroker.bench.pictures import MARGIN, Cell, legend, mark, note, save, strip
from minibroker.transfer.rates import SAMPLES, Rate

PLAIN, SECOND, GOOD, FOUND, GONE, FADED = "0", "1", "2", "4", "limit", 0.3
WIDTH = 752


def draw_ways(folder: Path) -> None:
    """The copies of a record's bytes, for each way to send them."""
    rows = (
        ("copy: pread, then write", [("page cache", GOOD), ("copied", GONE), ("Python's memory", SECOND),
                                     ("copied", GONE), ("socket", PLAIN)]),
        ("mmap: write from mapped pages", [("mapped pages", GOOD), ("copied", GONE), ("socket", PLAIN)]),
        ("sendfile", [("page cache", GOOD), ("referred to", FOUND), ("socket", PLAIN)]),
    )  # fmt: skip
    body, y = [], 64.0
    for title, steps in rows:
        body.append(note(title, y=y, class_="label"))
        body += strip([Cell(label, 140, colour) for label, colour in steps], y=y + 10)
        y += 78
    body += legend([(GONE, "every byte is copied"), (FOUND, "no byte is copied")], y=y)
    body.append(note("In the second and third row no byte of a record is ever in an object of Python.", y=y + 26))
    save(folder, "three-ways", "From the page cache to the socket", "Copies of a record's bytes in three ways.",
         size=(WIDTH, y + 44), body=body)  # fmt: skip


def draw_event(folder: Path) -> None:
    """The bytes of one readable event, the frames in them, and the answers in one send."""
    frames = [Cell("frame 1", 150, GOOD), Cell("frame 2", 190, SECOND), Cell("frame 3", 150, FOUND),
              Cell("part of 4", 110, PLAIN, opacity=FADED)]  # fmt: skip
    answers = [Cell("answer 1", 130, GOOD), Cell("answer 2", 130, SECOND), Cell("answer 3", 130, FOUND)]
    body = [
        note("one receive: the inbox, 64 KiB, shared by all connections", y=64, class_="label"),
        *strip(frames, y=74),
        note("kept", x=MARGIN + 510, y=132),
        note("three calls of handlers", y=160, class_="label"),
        note("one send", y=196, class_="label"),
        *strip(answers, y=206),
        note("The part of frame 4 is kept as a few bytes. The next event is received after it.", y=270),
    ]
    save(folder, "one-send", "One readable event, one send", "Frames of a buffer and their answers.",
         size=(WIDTH, 288), body=body)  # fmt: skip


def draw_line(folder: Path) -> None:
    """The line of answers, before and after a follower's fetch."""
    before = [Cell("Produce 1", 120, SECOND, "waits"), Cell("Produce 2", 120, SECOND, "waits"),
              Cell("Metadata", 120, GOOD, "ready"), Cell("Produce 3", 120, SECOND, "waits")]  # fmt: skip
    after = [Cell("Produce 1", 120, GOOD, "sent"), Cell("Produce 2", 120, GOOD, "sent"),
             Cell("Metadata", 120, GOOD, "sent"), Cell("Produce 3", 120, SECOND, "waits")]  # fmt: skip
    body = [
        note("all four requests were served; the first answer is not ready", y=64, class_="label"),
        *strip(before, y=74),
        note("one fetch of the followers has copied the batches of 1 and 2", y=158, class_="label"),
        *strip(after, y=168),
        *legend([(GOOD, "ready"), (SECOND, "waits for followers")], y=246),
        note("Three answers leave in one send, in the order of their requests.", y=270),
    ]
    save(folder, "line", "The line of answers", "Answers that wait and answers after them.",
         size=(WIDTH, 288), body=body)  # fmt: skip


def draw_window(folder: Path) -> None:
    """The samples of a rate: a client with a quota of 100 a second that takes 3,000 at once."""
    quota, burst, second = 100, 3000, 1000
    rate = Rate()
    rate.record(burst, 0)
    delay_s = rate.delay_ms(quota, 0) / second
    width = 52.0
    cells = [Cell(f"{burst:,}" if at == 0 else "0", width, GONE if at == 0 else PLAIN, f"{at}",
                  opacity=0.85 if at == 0 else FADED) for at in range(1 - SAMPLES, 1)]  # fmt: skip
    body = [
        note(f"quota: {quota} a second; the client takes {burst:,} in second 0, its first", y=64, class_="label"),
        *strip(cells, y=98),
        *mark("the ten seconds before it count as empty", x=MARGIN + 10 * width, y=90, bottom=140),
        note(f"rate = {burst:,} / 10 s = {burst // 10} a second", y=190),
        note(f"delay = ({burst // 10} - {quota}) / {quota} * 10 s = {delay_s:.0f} s", y=212),
        note(
            f"After the delay, the client has taken {burst:,} in 10 + {delay_s:.0f} s, which is its quota.",
            y=234,
        ),
    ]
    save(folder, "quota-window", "A rate is a mean over samples", "Eleven samples of one second.",
         size=(WIDTH, 252), body=body)  # fmt: skip


if __name__ == "__main__":
    for draw in (draw_ways, draw_event, draw_line, draw_window):
        draw(Path(sys.argv[1]))
