"""A producer that sends a batch again because a connection broke writes it once, and in order.

The link breaks after the broker has written and before its answer arrives. Then the producer cannot know whether the
batch was written (KIP-98).
"""

import asyncio
import threading

from aiokafka import AIOKafkaProducer
from brokers import Broker, unique
from cases import case
from clients_stock import (
    READ_S_MAX,
    Message,
    bounds,
    confluent_producer,
    confluent_read,
    confluent_write,
    create_topic,
)
from confluent_kafka import TopicPartition
from kafka import KafkaProducer
from proxy import Exchange, Proxy, Verdict

from minibroker.log.interfaces import FileSlice
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_response, read_request_header
from minibroker.wire.schema import decode_whole
from minibroker.wire.tables.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

pytest_plugins = ["clients_fixtures"]

PRODUCE = 0
COUNT = 40


class Breaker:
    """Loses every second answer to Produce on its way, up to a number of times."""

    def __init__(self, verdict: Verdict, times: int) -> None:
        self.verdict = verdict
        self.left = times
        self.seen = 0
        self.lock = threading.Lock()

    def __call__(self, exchange: Exchange) -> Verdict:
        with self.lock:
            if exchange.api_key != PRODUCE:
                return Verdict.PASS
            self.seen += 1
            if self.left and self.seen % 2:
                self.left -= 1
                return self.verdict
            return Verdict.PASS


def send_all(client: str, address: str, topic: str, *, is_idempotent: bool = True) -> None:
    """Send numbered records one after another, each in a request of its own, and wait for every one."""
    values = [b"%d" % n for n in range(COUNT)]
    if client == "confluent":
        settings = {
            "enable.idempotence": is_idempotent,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "retry.backoff.ms": 20,
        }
        settings |= {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
        producer = confluent_producer(address, **settings)
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(READ_S_MAX) == 0
    elif client == "kafka-python":
        settings = {"enable_idempotence": is_idempotent, "batch_size": 1, "retry_backoff_ms": 20}
        settings |= {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}
        python = KafkaProducer(bootstrap_servers=address, **settings)
        try:
            for future in [python.send(topic, value, partition=0) for value in values]:
                future.get(READ_S_MAX)
        finally:
            python.close()
    else:
        asyncio.run(_send_all_by_aiokafka(address, topic, values))


async def _send_all_by_aiokafka(address: str, topic: str, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, retry_backoff_ms=20)
    await producer.start()
    try:
        for value in values:
            await asyncio.wait_for(producer.send_and_wait(topic, value, partition=0), READ_S_MAX)
    finally:
        await producer.stop()


def test_a_record_whose_answer_was_lost_is_written_once(broker: Broker) -> None:
    for verdict in (Verdict.CUT, Verdict.TEAR):
        for client in ("confluent", "kafka-python", "aiokafka"):
            with case(verdict, client):
                topic = create_topic(broker.address, unique("once"))
                with Proxy(broker.address) as proxy:
                    breaker = proxy.on_response = Breaker(verdict, times=5)
                    send_all(client, proxy.address, topic)
                    assert breaker.left == 0, "the link did not break as often as planned"
                assert bounds(broker.address, topic) == (0, COUNT)
                assert [one.value for one in confluent_read(broker.address, topic, COUNT)] == [
                    b"%d" % n for n in range(COUNT)
                ]


def test_without_idempotence_the_same_link_makes_duplicates(broker: Broker) -> None:
    """The control for the test above: the proxy does let the broker write before it cuts."""
    topic = create_topic(broker.address, unique("twice"))
    with Proxy(broker.address) as proxy:
        proxy.on_response = Breaker(Verdict.CUT, times=5)
        send_all("confluent", proxy.address, topic, is_idempotent=False)
    end = bounds(broker.address, topic)[1]
    assert end > COUNT
    assert {one.value for one in confluent_read(broker.address, topic, end)} == {b"%d" % n for n in range(COUNT)}


def test_a_request_that_never_arrived_is_sent_again(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("lost"))
    with Proxy(broker.address) as proxy:
        proxy.on_request = Breaker(Verdict.TEAR, times=5)
        send_all("confluent", proxy.address, topic)
    assert [one.value for one in confluent_read(broker.address, topic, COUNT)] == [b"%d" % n for n in range(COUNT)]
    assert bounds(broker.address, topic) == (0, COUNT)


class RefuserOfTheFirst:
    """Refuses the first Produce request as a broker would that does not lead yet, while the next two pass by it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.seen: list[Exchange] = []

    def __call__(self, exchange: Exchange) -> Verdict:
        if exchange.api_key != PRODUCE:
            return Verdict.PASS
        self.seen.append(exchange)
        if len(self.seen) == 1:
            # A client reads its answers in order, so those to the next requests wait until the first is refused.
            self.proxy.withhold()
            return Verdict.DROP
        if len(self.seen) == 3:
            self.proxy.answer(self.seen[0], *refusal_of(self.seen[0], ErrorCode.NOT_LEADER_OR_FOLLOWER))
            self.proxy.release()
        return Verdict.PASS


def refusal_of(exchange: Exchange, code: ErrorCode) -> list[bytes]:
    header, position = read_request_header(memoryview(exchange.request))
    request = decode_whole(ProduceRequest, memoryview(exchange.request), position, header.api_version)
    topics = [
        TopicProduceResponse(
            name=topic.name,
            partition_responses=[
                PartitionProduceResponse(index=one.index, error_code=code, base_offset=-1)
                for one in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    response = ProduceResponse(responses=topics)
    parts = frame_response(response, version=header.api_version, correlation_id=header.correlation_id)
    return [bytes(part) for part in parts if not isinstance(part, FileSlice)]


def test_a_first_batch_that_was_refused_is_not_overtaken(broker: Broker) -> None:
    """KAFKA-15591: in a new topic the batches sent after it are refused as well, and all are sent again in order."""
    topic = create_topic(broker.address, unique("overtaken"))
    with Proxy(broker.address) as proxy:
        refuser = proxy.on_request = RefuserOfTheFirst(proxy)
        send_all("confluent", proxy.address, topic)
        assert len(refuser.seen) > COUNT, "nothing was sent again"
    assert [one.value for one in confluent_read(broker.address, topic, COUNT)] == [b"%d" % n for n in range(COUNT)]
    assert bounds(broker.address, topic) == (0, COUNT)


def test_several_producers_through_breaking_links_keep_their_order(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("several"))
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            with Proxy(broker.address) as proxy:
                proxy.on_response = Breaker(Verdict.CUT, times=4)
                settings = {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 5, "retry.backoff.ms": 20}
                messages = [Message(b"%d" % n, name.encode()) for n in range(200)]
                confluent_write(proxy.address, topic, messages, **settings)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(f"producer {n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = confluent_read(broker.address, topic, 600)
    assert bounds(broker.address, topic) == (0, 600)
    for n in range(3):
        assert [one.value for one in found if one.key == b"producer %d" % n] == [b"%d" % k for k in range(200)]


def test_a_consumer_reads_on_through_a_breaking_link(broker: Broker) -> None:
    from clients_stock import confluent_consumer, confluent_take

    topic = create_topic(broker.address, unique("reader"))
    confluent_write(broker.address, topic, [Message(b"%d" % n) for n in range(500)], **{"batch.num.messages": 10})
    fetches = iter(range(10_000))
    with Proxy(broker.address) as proxy:
        proxy.on_response = lambda one: Verdict.TEAR if one.api_key == 1 and next(fetches) % 3 == 1 else Verdict.PASS
        settings = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1000, "message.max.bytes": 1000}
        settings |= {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}
        consumer = confluent_consumer(proxy.address, **settings)
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            assert [one.value for one in confluent_take(consumer, 500)] == [b"%d" % n for n in range(500)]
        finally:
            consumer.close()
