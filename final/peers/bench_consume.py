"""Consume 1 KB records from the start: from the page cache with each way to send them, and from the disk."""

from minibroker.bench import Bar, Benchmark, Case, Context, kafka, limits, scaled
from minibroker.bench.plot import OURS
from peers.load import Load, Rounds
from peers.stage import Peer, Work, one_node, our_node

WAYS = ("copy", "sendfile", "mmap")
READING = (
    "consumer.enable.auto.commit=false",
    "consumer.fetch.queue.backoff.ms=1",
    "consumer.fetch.wait.max.ms=10",
)
WRITING = ("acks=1", "queue.buffering.max.messages=1000000")


def benchmark(context: Context) -> Benchmark:
    peers, note = one_node(context)
    others = [our_node(context, f"minibroker.fetch.transfer={way}", name=f"{OURS}, {way}") for way in WAYS]
    work = Work(scaled(full=500_000, quick=2_000), 1000)
    made = [Reading(context, peer, work) for peer in (*peers, *others)]
    cases = [it.case(temperature) for temperature in ("warm", "cold") for it in made]
    return Benchmark(
        "Consume 1 KB records from the start, one node",
        cases,
        bars=[
            Bar(f"warm, {OURS}", "ratio", at_least=1.3, against=f"warm, {kafka.NAME}"),
            Bar(f"warm, {OURS}", "cpu_ratio", at_most=0.9, against=f"warm, {kafka.NAME}"),
        ]
        if len(peers) > 1
        else [],
        columns=["cpu_us_per_op"],
        note="Warm is from the page cache, cold from the disk. An operation is a record; CPU is the broker's. "
        f"One partition; client: {', '.join(READING)}. {note}",
    )


class Reading:
    """A topic on one broker, and the client that reads it."""

    def __init__(self, context: Context, peer: Peer, work: Work) -> None:
        self._context, self._peer, self._work = context, peer, work
        self._topic = peer.create(1, {})
        self._load = Load(context, f"bootstrap.servers={peer.bootstrap}", *WRITING, *READING)
        self._load.run(*work.words(self._topic))
        assert peer.records_in(self._topic, 1) == work.records

    def case(self, temperature: str) -> Case:
        """Read the whole topic."""
        rounds = Rounds()
        return Case(
            f"{temperature}, {self._peer.name}",
            lambda: rounds.reports.append(self._load.run("consume", self._topic, 1, self._work.records)),
            bytes_count=self._work.records * self._work.bytes,
            operations_count=self._work.records,
            series=OURS if self._peer.name.startswith(OURS) else self._peer.name,
            group=f"{temperature} cache",
            before=self._forget if temperature == "cold" else None,
            cpu_s=self._peer.cpu_s,
            wall_s=rounds.last_s,
        )

    def _forget(self) -> None:
        """Write the log to the disk, and let the page cache drop it."""
        # The page cache keeps pages that a process has mapped, so our node stops for a moment. Kafka maps no records,
        # and after a restart its compiler would have to begin again.
        ours = [it for it in self._peer.nodes if self._peer.name != kafka.NAME]
        for node in ours:
            node.stop()
        for path in self._context.directory.glob(f"**/{self._topic}-0/*.log"):
            limits.forget(path)
        for node in ours:
            node.restart()
        limits.warm_memory(self._context, self._work.records * self._work.bytes)
