"""The cost of a decision, and the time without a controller after a failure.

A decision checks a command against the image, writes and flushes a batch, and folds it into the image. It is compared
with a bare write and flush of the same bytes. Elections run in memory, between state machines; the time without a
leader is their simulated time.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, LineChart, Results, limits, scaled
from minibroker.bench.outages import Outages, distribution
from minibroker.controller.deciding import Controller
from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import Files
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import Image
from minibroker.metadata.records import FeatureLevelRecord
from minibroker.raft.election import Ballot
from minibroker.raft.messages import BeginQuorumEpoch, Fetch, Send, Vote
from minibroker.raft.node import Raft
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replication.epochs import EpochCache
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode

# The tests of this chapter have nodes on disks in memory.
NODES_FOLDER = Path(__file__).parents[1] / "tests"
DIRECTORY = "__cluster_metadata-0"

# Decisions ------------------------------------------------------------------------------------------------------------

ON_DISK = "one voter, on its disk"
IN_MEMORY = "one voter, in memory"
BARE = "bare write and flush"


@dataclass(frozen=True)
class Raise(Command[int]):
    """Raise a feature by a level: a small decision, like most decisions."""

    def run(self, image: Image, records: Records) -> int:
        """Write one record."""
        level = (image.features.get("bench", 0) + 1) % 1000
        records.add([FeatureLevelRecord(name="bench", feature_level=level)])
        return level

    def refuse(self, code: ErrorCode, message: str) -> int:
        """Fail: an only voter never refuses."""
        raise AssertionError(f"{code.name}: {message}")


def lone_controller(files: Files, directory: str) -> Controller:
    """A quorum of one, which leads at once."""
    epochs = EpochCache(files, directory)
    log = SegmentedLog.open(files, directory, companions=[epochs])
    me = VoterKey(1, bytes(15) + b"\1")
    raft = Raft(me, log, epochs, Ballot(files, directory), VoterSet.of([Voter(me)]), chance=lambda _: 0, now_ms=0)
    raft.tick(0)
    controller = Controller(raft, Image(), clock=lambda: 0)
    controller.catch_up()
    return controller


def deciding(controller: Controller, count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            assert controller.propose(Raise()).is_done

    return run


def benchmark_decisions(context: Context) -> Benchmark:
    count = scaled(full=500, quick=20)
    directory = context.directory / DIRECTORY
    directory.mkdir()
    on_disk = lone_controller(OSFiles(), str(directory))
    in_memory = lone_controller(MemoryFiles(), DIRECTORY)
    size = on_disk.raft.log.size
    deciding(on_disk, 1)()
    batch_bytes = on_disk.raft.log.size - size
    descriptor = limits.scratch_file(context, "bare")
    return Benchmark(
        "Decisions of an only voter",
        [
            limits.write_flush(descriptor, count * batch_bytes, batch_bytes, BARE),
            Case(ON_DISK, deciding(on_disk, count), count * batch_bytes, count, limit=BARE),
            Case(IN_MEMORY, deciding(in_memory, count), count * batch_bytes, count),
        ],
        # The rest of the time is Python: encoding, checking and folding a record.
        bars=[Bar(ON_DISK, "ratio", at_least=0.25)],
        metric="ops_per_s",
        columns=["us_per_op"],
        log=True,
        note=f"An operation is a decision of one record, a batch of {batch_bytes} bytes, flushed.",
    )


# Elections ------------------------------------------------------------------------------------------------------------

ELECTION = "election of three, in memory"
HOP_MS = 1
LONG_POLL_MS = 300
DEATH_MS = 3_000
GIVE_UP_MS = 60_000


class Quorum:
    """Three voters in simulated time, in steps of a millisecond; a message takes one step."""

    def __init__(self, seed: int) -> None:
        from raft_nodes import QuorumNode, voters  # noqa: PLC0415

        chance = Random(seed)
        self.now_ms = 0
        self.nodes = {it: QuorumNode(it, voters(1, 2, 3), chance=chance.randrange) for it in (1, 2, 3)}
        for node in self.nodes.values():
            node.open(0)
        self._mail: list[tuple[int, int, Send]] = []
        self._fetches: dict[int, tuple[int, int, Fetch]] = {}

    @property
    def leader(self) -> Raft | None:
        """The leader, once its epoch has a committed record."""
        led = [it.raft for it in self.nodes.values() if it.raft.is_leader]
        return next((it for it in led if it.high_watermark > it.epoch_start_offset), None)

    def pass_ms(self) -> None:
        """Let a millisecond pass."""
        self.now_ms += HOP_MS
        mail, self._mail = self._mail, []
        for source, _due_ms, send in mail:
            self._deliver(source, send)
        for node_id, node in self.nodes.items():
            self._post(node_id, node.raft.tick(self.now_ms))
            self._fetch(node_id, node.raft)

    def _post(self, source: int, sends: list[Send]) -> None:
        self._mail += [(source, self.now_ms, it) for it in sends]

    def _deliver(self, source: int, send: Send) -> None:
        """Deliver a message and its response."""
        if source not in self.nodes or send.node_id not in self.nodes:
            return
        raft, other = self.nodes[source].raft, self.nodes[send.node_id].raft
        message = send.message
        if isinstance(message, Vote):
            self._post(source, raft.on_voted(send.node_id, message, other.on_vote(message, self.now_ms), self.now_ms))
        elif isinstance(message, BeginQuorumEpoch):
            raft.on_heard(other.on_begin(message, self.now_ms), self.now_ms)

    def _fetch(self, node_id: int, raft: Raft) -> None:
        """Keep one fetch under way. It is answered when there is news, or after a timeout."""
        asked = self._fetches.get(node_id)
        if asked is None:
            position, target = raft.position(), raft.target()
            if position is not None and target in self.nodes:
                self._fetches[node_id] = (target, self.now_ms, position)
            return
        target, since_ms, position = asked
        if target not in self.nodes:
            del self._fetches[node_id]
            raft.on_unanswered()
            return
        leader = self.nodes[target].raft
        is_news = leader.log.log_end_offset > position.offset or leader.high_watermark > raft.high_watermark
        if not leader.is_leader or is_news or self.now_ms in (since_ms + HOP_MS, since_ms + LONG_POLL_MS):
            fetched = leader.on_fetch(position, since_ms + HOP_MS)
            if fetched.code or is_news or self.now_ms >= since_ms + LONG_POLL_MS:
                del self._fetches[node_id]
                raft.on_fetched(position, fetched, self.now_ms)

    def until_led(self) -> int:
        """Let time pass until a leader has committed a record; return how much."""
        begin_ms = self.now_ms
        while self.leader is None:
            assert self.now_ms < begin_ms + GIVE_UP_MS, "no leader is elected"
            self.pass_ms()
        return self.now_ms - begin_ms


def outage_ms(seed: int) -> int:
    """The time without a controller after the leader was killed."""
    quorum = Quorum(seed)
    death_ms = DEATH_MS + Random(f"death {seed}").randrange(LONG_POLL_MS)
    while quorum.now_ms < death_ms or quorum.leader is None:
        quorum.pass_ms()
    del quorum.nodes[quorum.leader.me.node_id]
    return quorum.until_led()


def benchmark_elections(context: Context) -> Benchmark:
    sys.path.insert(0, str(NODES_FOLDER))
    context.on_close(sys.path.remove, str(NODES_FOLDER))
    seeds = scaled(full=300, quick=4)
    count = scaled(full=10, quick=1)

    @cache
    def outages() -> Outages:
        return Outages("simulated time", tuple(outage_ms(seed) for seed in range(seeds)))

    def figure(_results: Results) -> LineChart:
        return distribution(
            [outages()],
            title="The leader of three voters is killed",
            x_label="milliseconds until another leader has committed a record",
            y_label="share of the elections",
        )

    return Benchmark(
        "Elections",
        [Case(ELECTION, lambda: [Quorum(seed).until_led() for seed in range(count)], operations_count=count)],
        metric="ms_per_op",
        columns=["ms_per_op"],
        figure=figure,
        facts=[
            Fact("no controller, median", "ms", lambda: float(outages().at(50))),
            Fact("no controller, 99 of 100", "ms", lambda: float(outages().at(99))),
            # A fetch timeout and an election timeout, and another election timeout after a split vote.
            Fact("no controller, longest", "ms", lambda: float(outages().at(100)), at_most=2000),
        ],
        note=f"Outages are in the nodes' own time, of {seeds} runs; a message takes {HOP_MS} ms.",
    )
