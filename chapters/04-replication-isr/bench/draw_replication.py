"""Draws the concepts of this chapter from its own code: the high watermark, an in-sync set over time, epochs, KIP-966.

Run it with `python chapters/04-replication-isr/bench/draw_replication.py docs/chapters/04-replication-isr/figures`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from minibroker.bench.pictures import BOX, MARGIN, Cell, legend, mark, note, save, strip
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.image import Image, PartitionImage
from minibroker.replication.eligible import (
    ELIGIBLE_LEADER_REPLICAS_LEVEL,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    with_eligible,
)
from minibroker.replication.epochs import EpochCache
from minibroker.replication.follower import common_end
from minibroker.replication.leader import Altered, Leadership
from minibroker.replication.records import PartitionChangeRecord, after_change
from minibroker.wire.codes import ErrorCode

PLAIN, SECOND, GOOD, THIRD, FOUND, FADED = "0", "1", "2", "3", "4", 0.35
COLOURS = (GOOD, SECOND, FOUND, THIRD, PLAIN)
WIDTH = 752
NAME_PX = 130
PARTITION = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=0, partition_epoch=0)
BROKER_EPOCHS = {1: 1, 2: 2, 3: 3}


def leading() -> Leadership:
    """Node 1 leads, all are in sync, and nothing was written before its epoch."""
    return Leadership(1, PARTITION, BROKER_EPOCHS, epoch_start_offset=0, now_ms=0)


def fetch(leader: Leadership, node_id: int, offset: int, *, end: int) -> None:
    """A follower asks for an offset."""
    leader.on_fetch(
        node_id,
        broker_epoch=BROKER_EPOCHS[node_id],
        offset=offset,
        log_start_offset=0,
        leader_end_offset=end,
        now_ms=0,
    )


def watermark_of(leader: Leadership, end: int) -> int:
    """The high watermark, which has moved at least once."""
    found = leader.watermark(end, min_insync_replicas=2)
    assert found is not None
    return found


def draw_watermark(folder: Path) -> None:
    """Three logs and the high watermark."""
    ends = {1: 10, 2: 7, 3: 9}
    leader, box = leading(), 54
    for node_id in (2, 3):
        fetch(leader, node_id, ends[node_id], end=ends[1])
    watermark = watermark_of(leader, ends[1])
    names = {1: "1, leader", 2: "2 asks for 7", 3: "3 asks for 9"}
    body, x = [], MARGIN + NAME_PX
    for row, (node_id, end) in enumerate(ends.items()):
        y = 104 + row * (BOX + 14)
        body.append(note(f"node {names[node_id]}", y=y + 23, class_="label"))
        cells = [Cell(str(offset), box, GOOD if offset < watermark else SECOND) for offset in range(end)]
        body += strip(cells, x=x, y=y)
    body += mark(f"high watermark {watermark}", x=x + watermark * box, y=86, bottom=104 + 3 * (BOX + 14) - 8)
    body += legend([(GOOD, "on every replica in sync: acknowledged, and visible"), (SECOND, "not yet")], y=280)
    save(folder, "watermark", "The high watermark is the smallest end of the replicas in sync",
         "Three logs of different lengths, and the offset up to which all of them have every record.",
         size=(WIDTH, 298), body=body)  # fmt: skip


def draw_isr(folder: Path) -> None:
    """An in-sync set and the high watermark, moment by moment, as the leader computes them."""
    leader, rows, high = leading(), [], 0

    def look(what: str, end: int, third: int) -> None:
        nonlocal high
        high = max(high, watermark_of(leader, end))
        rows.append((what, leader.maximal_isr, {1: end, 2: end, 3: third}, high))

    for node_id in (2, 3):
        fetch(leader, node_id, 4, end=4)
    look("all are in sync", 4, 4)
    fetch(leader, 2, 8, end=8)
    look("node 3 is silent", 8, 4)
    proposal = leader.propose({1, 2}, 0)
    look("the leader proposes {1, 2}", 8, 4)
    leader.on_altered(proposal, Altered(ErrorCode.NONE, (1, 2), 1))
    look("the controller has accepted", 8, 4)
    fetch(leader, 3, 8, end=8)
    look("node 3 has caught up", 8, 8)
    proposal = leader.propose({1, 2, 3}, 0)
    fetch(leader, 2, 9, end=9)
    look("the leader proposes {1, 2, 3}", 9, 8)
    leader.on_altered(proposal, Altered(ErrorCode.NONE, (1, 2, 3), 2))
    fetch(leader, 3, 9, end=9)
    look("accepted, and node 3 has fetched", 9, 9)
    body = [note(text, x=x, y=66, class_="label") for text, x in
            (("time", MARGIN), ("log end offsets of nodes 1, 2, 3", 262), ("high watermark", 590))]  # fmt: skip
    for row, (what, counted, ends, watermark) in enumerate(rows):
        y = 78 + row * (BOX + 8)
        body.append(note(what, y=y + 23))
        cells = [Cell(f"{it}: {end}", 96, GOOD if it in counted else PLAIN, opacity=0.85 if it in counted else FADED)
                 for it, end in ends.items()]  # fmt: skip
        body += strip(cells, x=262, y=y)
        body += strip([Cell(str(watermark), 96, FOUND)], x=590, y=y)
    y = 78 + len(rows) * (BOX + 8) + 22
    body += legend(
        [(GOOD, "counts"), (PLAIN, "does not count", FADED), (FOUND, "the smallest end of those that count")], y=y
    )
    save(folder, "isr-over-time", "A follower falls silent, leaves the in-sync set, and returns",
         "Seven moments: log end offsets, the replicas that count, and the high watermark.",
         size=(WIDTH, y + 18), body=body)  # fmt: skip


def epochs_of(*entries: tuple[int, int]) -> EpochCache:
    """The epochs of a log."""
    cache = EpochCache(MemoryFiles(), "orders-0")
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


def log_cells(entries: Sequence[tuple[int, int]], end: int, *, kept: int, box: float) -> list[Cell]:
    """The records of a log, each with its epoch; those from `kept` on are truncated."""
    epochs = epochs_of(*entries)
    return [
        Cell(f"{epochs.epoch_of(offset)}:{offset}", box, COLOURS[epochs.epoch_of(offset)],
             opacity=0.85 if offset < kept else FADED)
        for offset in range(end)
    ]  # fmt: skip


def draw_divergence(folder: Path) -> None:
    """Two logs of the same length that diverge, and what their epochs tell."""
    leaders, ours, end, box, x = [(0, 0), (1, 5)], [(0, 0)], 8, 66, MARGIN + NAME_PX
    told = epochs_of(*leaders).end_of(0, log_end_offset=end)
    kept = common_end(told, epochs_of(*ours), log_end_offset=end)
    body = [
        note("node 2, leader", y=127, class_="label"),
        *strip(log_cells(leaders, end, kept=end, box=box), x=x, y=104),
        note("node 1, follower", y=187, class_="label"),
        *strip(log_cells(ours, end, kept=kept, box=box), x=x, y=164),
        *mark(f"epoch 0 ends at {told.end_offset}", x=x + told.end_offset * box, y=86, bottom=206),
        *legend([(GOOD, "epoch 0"), (SECOND, "epoch 1")], y=234),
        note("Both logs end at 8. Node 1 asks for offset 8 and says that its last record is of epoch 0.", y=258),
        note(f"Node 2 answers: my epoch 0 ends at {told.end_offset}. Node 1 truncates its log there.", y=278),
    ]  # fmt: skip
    save(folder, "divergence", "The same offsets, other records: only the epochs tell",
         "Two logs that are equal up to offset 5 and differ after it.", size=(WIDTH, 296), body=body)  # fmt: skip


def draw_two_rounds(folder: Path) -> None:
    """KIP-279: the leader has never had the follower's last two epochs, so the follower truncates twice."""
    leaders, ours, end, box, x = [(0, 0), (2, 3), (4, 6)], [(0, 0), (1, 4), (3, 6)], 8, 66, MARGIN + NAME_PX
    body, y, log_end, is_diverging = [note("node 3, leader", y=87, class_="label")], 124, end, True
    body += strip(log_cells(leaders, end, kept=end, box=box), x=x, y=64)
    while is_diverging:
        mine = epochs_of(*[it for it in ours if it[1] < log_end])
        told = epochs_of(*leaders).end_of(mine.latest_epoch, log_end_offset=end)
        kept = common_end(told, mine, log_end_offset=log_end)
        is_diverging = told.epoch < mine.latest_epoch or told.end_offset < log_end
        told_end = f"is told that epoch {told.epoch} ends at {told.end_offset}; truncates to {kept}"
        answer = told_end if is_diverging else "gets records"
        body += [
            note("node 2, follower", y=y + 23, class_="label"),
            *strip(log_cells(ours, log_end, kept=kept, box=box), x=x, y=y),
            note(f"asks for {log_end}, last epoch {mine.latest_epoch}; {answer}", x=x, y=y + BOX + 18),
        ]
        y, log_end = y + BOX + 36, kept
    body += legend([(colour, f"epoch {epoch}") for epoch, colour in enumerate(COLOURS)], y=y + 16)
    save(folder, "two-rounds", "Two epochs that the leader never had (KIP-279)",
         "A follower truncates its log in two rounds.", size=(WIDTH, y + 34), body=body)  # fmt: skip


def eligible_rows() -> list[tuple[str, PartitionImage]]:
    """The life of a partition with min.insync.replicas=2, decided by the code of `eligible`."""
    image = Image(
        features={ELIGIBLE_LEADER_REPLICAS_VERSION: ELIGIBLE_LEADER_REPLICAS_LEVEL},
        configs={(ConfigResource.TOPIC, "orders"): {"min.insync.replicas": "2"}},
    )
    partition, rows = PARTITION, [("all are in sync", PARTITION)]
    for what, isr, leader, live in (
        ("node 1 stops", [2, 3], 2, (2, 3)),
        ("node 2 stops", [3], 3, (3,)),
        ("node 3 stops", [], -1, ()),
        ("node 2 returns", None, -1, (2,)),
        ("node 1 has caught up", [2, 1], None, (1, 2)),
    ):
        change = PartitionChangeRecord(partition_id=0, topic_id=bytes(16), isr=isr)
        if leader is not None:
            change.leader = leader
        partition = after_change(partition, with_eligible(change, image, "orders", partition, live=live))
        rows.append((what, partition))
    return rows


def draw_eligible(folder: Path) -> None:
    """Replicas that are in sync, eligible, or neither, while nodes stop and return."""
    body = [note(text, x=x, y=66, class_="label") for text, x in
            (("event", MARGIN), ("replicas", 232), ("leader", 420), ("high watermark", 520))]  # fmt: skip
    for row, (what, it) in enumerate(eligible_rows()):
        y = 78 + row * (BOX + 8)
        cells = [
            Cell(str(node_id), 56, GOOD if node_id in it.isr else FOUND if node_id in it.eligible_leader_replicas
                 else PLAIN, opacity=0.85 if node_id in (*it.isr, *it.eligible_leader_replicas) else FADED)
            for node_id in it.replicas
        ]  # fmt: skip
        body += [note(what, y=y + 23), *strip(cells, x=232, y=y)]
        body.append(note(str(it.leader) if it.leader >= 0 else "none", x=434, y=y + 23))
        body.append(note("moves" if len(it.isr) >= 2 else "stands still", x=520, y=y + 23))
    y = 78 + 6 * (BOX + 8) + 22
    body += legend(
        [(GOOD, "in sync"), (FOUND, "eligible: lacks nothing"), (PLAIN, "may lack acknowledged records", FADED)], y=y
    )
    save(folder, "eligible", "Three nodes stop, and the second one returns (min.insync.replicas is 2)",
         "Which replicas are in sync, eligible, or neither.", size=(WIDTH, y + 18), body=body)  # fmt: skip


if __name__ == "__main__":
    for draw in (draw_watermark, draw_isr, draw_divergence, draw_two_rounds, draw_eligible):
        draw(Path(sys.argv[1]))
