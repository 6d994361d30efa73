"""Draws the concepts of this chapter: figure 8 of the Raft paper, two images, a failover over time, replicas on racks.

Run it with `python chapters/05-raft-controller/bench/draw_raft.py docs/chapters/05-raft-controller/figures`.
"""

import sys
from pathlib import Path

from minibroker.bench.pictures import BOX, MARGIN, Cell, legend, mark, note, save, strip
from minibroker.controller.placement import place_on_racks
from minibroker.metadata.image import BrokerImage, Image
from minibroker.metadata.placement import place

PLAIN, SECOND, GOOD, FOUND, GONE, FADED = "0", "1", "2", "4", "limit", 0.3
EPOCHS = {1: PLAIN, 2: SECOND, 3: GOOD, 4: FOUND}
WIDTH = 752

# Each step of figure 8: its title, the leader, the nodes that are down, and the epochs in the log of each node. The
# record `a` is the second one of epoch 1.
FIGURE_8 = (
    ("(a) 1 writes a", 1, (), {1: (1, 1), 2: (1, 1), 3: (1,), 4: (1,), 5: (1,)}),
    ("(b) 5 writes b", 5, (1,), {1: (1, 1), 2: (1, 1), 3: (1,), 4: (1,), 5: (1, 2)}),
    ("(c) 1 is back", 1, (5,), {1: (1, 1, 3), 2: (1, 1), 3: (1, 1), 4: (1,), 5: (1, 2)}),
    ("(d) 5 is back", 5, (1,), {1: (1, 1, 3), 2: (1, 2), 3: (1, 2), 4: (1, 2), 5: (1, 2)}),
    ("(e) in place of (d)", 1, (5,), {1: (1, 1, 3), 2: (1, 1, 3), 3: (1, 1, 3), 4: (1,), 5: (1, 2)}),
)


def draw_figure_8(folder: Path) -> None:
    """The logs of five voters in the five steps of figure 8."""
    body, cell, step = [], 34.0, 146.0
    for column, (title, leader, down, logs) in enumerate(FIGURE_8):
        x = MARGIN + column * step
        body.append(note(title, x=x, y=64, class_="label"))
        for row, (number, epochs) in enumerate(logs.items()):
            y = 80 + row * (BOX + 6)
            name = f"{number} ★" if number == leader else f"{number}"
            opacity = FADED if number in down else 0.85
            body.append(note(name, x=x, y=y + 23, class_="value"))
            cells = [Cell(f"{it}a" if at == 1 and it == 1 else f"{it}", cell, EPOCHS[it], opacity=opacity)
                     for at, it in enumerate(epochs)]  # fmt: skip
            body += strip(cells, x=x + 26, y=y)
    y = 80 + 5 * (BOX + 6) + 18
    body += legend([(colour, f"epoch {epoch}") for epoch, colour in EPOCHS.items() if epoch < 4], y=y)
    body += [
        note("★ leads. Pale nodes are down. In (c) record a is on three of five disks; in (d) it is gone.", y=y + 26),
        note("In (e) a record of epoch 3 is on three disks, too. From then on node 5 cannot win.", y=y + 46),
    ]
    save(folder, "figure-8", "A record on a majority that is lost", "The logs of five voters in five steps.",
         size=(WIDTH, y + 64), body=body)  # fmt: skip


def draw_images(folder: Path) -> None:
    """The metadata log of a controller, and what its two images hold."""
    records = ["topic", "part.", "part.", "broker", "unfence", "part.", "topic", "part.", "fence", "part."]
    width, known = 70.0, 7
    cells = [Cell(it, width, GOOD if at < known else SECOND, f"{at}") for at, it in enumerate(records)]
    end = MARGIN + known * width
    body = [
        *strip(cells, y=92),
        *mark("high watermark", x=end, y=80, bottom=98 + BOX),
        *strip([Cell("image: the same on every node at this offset", known * width, GOOD, opacity=FADED)], y=166),
        *strip([Cell("_ahead: only the controller, to check the next command", 10 * width, SECOND, opacity=FADED)],
               y=210),
        *legend([(GOOD, "committed: a majority has it"), (SECOND, "appended: it may be lost with its leader")], y=272),
    ]  # fmt: skip
    save(folder, "two-images", "One log, two images", "Ten metadata records, seven of them committed.",
         size=(WIDTH, 292), body=body)  # fmt: skip


def draw_timeline(folder: Path) -> None:
    """Two failovers over time, with the middle values of the benchmark."""
    second = 270.0
    body: list[str] = []
    rows = (
        ("a leader of partitions is killed",
         [(0.3, GOOD, ""), (1.7, GONE, "the rest of its session, 2 s"), (0.4, GOOD, "others lead")]),
        ("the controller is killed, and led partitions, too",
         [(0.3, GOOD, ""), (0.86, GONE, "fetch timeout"), (0.15, SECOND, ""),
          (0.9, GONE, "the rest of its session"), (0.4, GOOD, "others lead")]),
    )  # fmt: skip
    for row, (title, spans) in enumerate(rows):
        y = 76 + row * 96
        body.append(note(title, y=y - 8, class_="label"))
        body += strip([Cell(label, length * second, colour) for length, colour, label in spans], y=y)
        body.append(note("killed", x=MARGIN + 0.3 * second - 18, y=y + BOX + 18, class_="tick"))
        done = 0.3 + sum(length for length, _colour, _label in spans[1:-1])
        told = f"fenced after {done - 0.3:.1f} s"
        body.append(note(told, x=MARGIN + done * second - 50, y=y + BOX + 18, class_="tick"))
    body += legend([(GOOD, "writes are acknowledged"), (GONE, "waiting"), (SECOND, "an election of the quorum")], y=262)
    save(folder, "failover-timeline", "A failover is mostly waiting", "Two failovers over time.",
         size=(WIDTH, 282), body=body)  # fmt: skip


def draw_racks(folder: Path) -> None:
    """Where two placements put three replicas of six partitions."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    brokers = {it: BrokerImage(it, "", 0, rack, False, bytes(16), 0) for it, rack in racks.items()}
    image, colours = Image(brokers=brokers), {"a": PLAIN, "b": SECOND, "c": GOOD}
    asked = {"topic_id": (60).to_bytes(16, "big"), "first_partition": 0, "partition_count": 6, "replication_factor": 3}
    body: list[str] = []
    for column, (title, placing) in enumerate((("without racks", place), ("with racks", place_on_racks))):
        x = MARGIN + 360.0 * column
        body.append(note(title, x=x, y=64, class_="label"))
        for row, replicas in enumerate(placing(image, **asked)):  # type: ignore[arg-type]
            y = 78 + row * (BOX + 6)
            body.append(note(f"partition {row}", x=x, y=y + 23, class_="tick"))
            cells = [Cell(f"broker {it}", 80, colours[racks[it]]) for it in replicas]
            body += strip(cells, x=x + 80, y=y)
    y = 78 + 6 * (BOX + 6) + 20
    body += legend([(colour, f"rack {name}") for name, colour in colours.items()], y=y)
    save(folder, "racks", "Three replicas of six partitions on three racks", "Two placements side by side.",
         size=(WIDTH, y + 20), body=body)  # fmt: skip


if __name__ == "__main__":
    for draw in (draw_figure_8, draw_images, draw_timeline, draw_racks):
        draw(Path(sys.argv[1]))
