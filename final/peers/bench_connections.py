"""A thousand connections to one node: what an idle one costs, and whether 50 active ones among them meet an error."""

from bench.bench_requests import TOPIC, framed, produce
from bench.wires import Crowd, Wire, decoded, no_errors

from minibroker.bench import KIB, MB, Benchmark, Case, Context, Fact, scaled
from minibroker.bench.failover import await_ack
from minibroker.bench.plot import OURS
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from peers.stage import Peer, one_node

CONNECTIONS, ACTIVE = 1_000, 50
IDLE_KB_MAX = 15
PRODUCE_VERSION = 9


def benchmark(context: Context) -> Benchmark:
    peers, note = one_node(context)
    crowds = {peer.name: Connected(context, peer) for peer in peers}
    return Benchmark(
        f"{CONNECTIONS:,} connections to one node, {ACTIVE} of them active",
        [it.case() for it in crowds.values()],
        metric="ops_per_s",
        columns=["cpu_us_per_op"],
        # A JVM takes its memory at its start, so Kafka's connections cannot be seen in it.
        facts=[Fact("memory of an idle connection", "KB", crowds[OURS].idle_kb, at_most=IDLE_KB_MAX)],
        note=f"An operation is a Produce of 100 B. Each connection has been used once before it counts as idle. {note}",
    )


class Connected:
    """All connections to one broker."""

    def __init__(self, context: Context, peer: Peer) -> None:
        self._peer = peer
        self._frame = framed(produce())
        self._crowd = Crowd(context)
        self._count = scaled(full=CONNECTIONS, quick=60)
        with Client(peer.bootstrap) as client:
            create_topics(client, [NewTopic(TOPIC, 1)])
            await_ack(client, TOPIC, 0)
        # The first requests load code and grow buffers; that is no cost of a connection.
        self._crowd.connect(peer.bootstrap, ACTIVE)
        self._all_produce(100)
        before_mb = peer.resident_mb()
        self._crowd.connect(peer.bootstrap, self._count - ACTIVE)
        self._all_produce(1)
        self._idle_mb = (peer.resident_mb() - before_mb) / (self._count - ACTIVE)

    def _all_produce(self, times: int, active: int | None = None) -> None:
        async def repeat(number: int, wire: Wire) -> None:
            for _ in range(times if active is None or number < active else 0):
                answer = await wire.send(self._frame)
                no_errors([decoded(produce(), PRODUCE_VERSION, answer)])

        self._crowd.each(repeat)

    def idle_kb(self) -> float:
        """The memory of one idle connection."""
        return self._idle_mb * MB / KIB

    def case(self) -> Case:
        """Fifty connections produce; the others stay idle."""
        times = scaled(full=100, quick=2)
        return Case(
            self._peer.name,
            lambda: self._all_produce(times, ACTIVE),
            operations_count=times * ACTIVE,
            series=self._peer.name,
            cpu_s=self._peer.cpu_s,
        )
