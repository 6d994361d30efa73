"""The broker's CPU time for a fetch of many partitions of which one has records: with a fetch session and without.

Without a session, every request names all partitions, and every answer has all of them. In a session, the request names
the one partition whose offset has changed, and the answer has only that one.
"""

from functools import partial
from itertools import count

from bench.bench_requests import VALUE, framed
from bench.exchange import Exchange

from minibroker.bench import Bar, Benchmark, Case, Context, children, scaled
from minibroker.bench.watching import until
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.log.batch import BatchBuilder
from minibroker.transfer.session_fetch import FINAL_EPOCH, FULL_EPOCH
from minibroker.transfer.sessions import next_epoch
from minibroker.wire.headers import read_response_header
from minibroker.wire.schema import codes_in, decode_whole
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC = "wide"
SIZES = (10, 100, 1000)
_VERSION = 12
_ROUNDS_MAX = 20


def benchmark(context: Context) -> Benchmark:
    broker = children.serve(context)
    exchange = Exchange(context, broker.host, broker.port)
    cases: list[Case] = []
    for size in SIZES:
        topic = f"{TOPIC}-{size}"
        with Client(broker.address) as client:
            create_topics(client, [NewTopic(topic, size)])
        exchange.ask(framed(produce(topic)))
        times = scaled(full=max(20_000 // size, 200), quick=20)
        full = framed(fetch(topic, range(size), epoch=FINAL_EPOCH))
        until(partial(is_led, exchange, full), f"{topic} has all its leaders", seconds=30)
        answer_bytes = len(exchange.ask(full))
        cases.append(
            Case(
                f"all named, {size:,} partitions",
                partial(exchange.repeat, full, answer_bytes, count=times),
                operations_count=times,
                group=f"{size:,} partitions",
                cpu_s=broker.cpu_s,
            )
        )
        session = Session(exchange, topic, size)
        cases.append(
            Case(
                f"in a session, {size:,} partitions",
                partial(session.fetch, times),
                operations_count=times,
                limit=cases[-1].name,
                group=f"{size:,} partitions",
                cpu_s=broker.cpu_s,
            )
        )
    return Benchmark(
        "A fetch of many partitions, of which one has records",
        cases,
        bars=[Bar(f"in a session, {SIZES[-1]:,} partitions", "cpu_ratio", at_most=0.1)],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op", "cpu_ratio"],
        note="An operation is one request, the CPU time the broker's.",
    )


class Session:
    """A client in a session of all partitions, which reads the same record again and again."""

    def __init__(self, exchange: Exchange, topic: str, size: int) -> None:
        self._exchange = exchange
        self._topic = topic
        answer = decoded(exchange.ask(framed(fetch(topic, range(size), epoch=FULL_EPOCH))))
        self._session_id, self._epoch = answer.session_id, next_epoch(FULL_EPOCH)
        assert self._session_id, "the broker has begun no session"
        # After the first fetches, the partitions without news are not due. Then an answer has only the one partition.
        for number in count():
            received = exchange.ask(self._request())
            if len(decoded(received).responses) == 1 and number > 2 + size // 500:
                break
            assert number < _ROUNDS_MAX
        self._answer_bytes = len(received)

    def _request(self) -> bytes:
        request = fetch(self._topic, [0], epoch=self._epoch, session_id=self._session_id)
        self._epoch = next_epoch(self._epoch)
        return framed(request)

    def fetch(self, times: int) -> None:
        """Fetch so many times, one request at a time."""
        self._exchange.each([self._request() for _ in range(times)], self._answer_bytes)


def fetch(topic: str, partitions: "range | list[int]", *, epoch: int, session_id: int = 0) -> FetchRequest:
    wanted = [FetchPartition(partition=it, fetch_offset=0, partition_max_bytes=2**20) for it in partitions]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=wanted)],
    )


def produce(topic: str) -> ProduceRequest:
    builder = BatchBuilder()
    builder.append(timestamp=1_700_000_000_000, key=None, value=VALUE)
    data = PartitionProduceData(index=0, records=builder.build())
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def is_led(exchange: Exchange, full: bytes) -> bool:
    """Whether no partition of a fetch is in error."""
    return not any(codes_in(decoded(exchange.ask(full))))


def decoded(received: bytes) -> FetchResponse:
    frame = memoryview(received)[4:]
    _correlation_id, position = read_response_header(FetchRequest.schema.key or 0, _VERSION, frame)
    return decode_whole(FetchResponse, frame, position, _VERSION)
