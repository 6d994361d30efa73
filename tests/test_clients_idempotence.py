"""A producer that sends again because a connection broke: what was written once stays once, and in order.

The link breaks after the broker has written and before its answer arrives: the one moment in which a producer cannot
know (KIP-98).
"""

import asyncio
import threading

import pytest
from aiokafka import AIOKafkaProducer
from brokers import Broker, unique
from clients_stock import (
    READ_S_MAX,
    Message,
    bounds,
    confluent_producer,
    confluent_read,
    confluent_write,
    create_topic,
    forgiving_leaks,
)
from confluent_kafka import TopicPartition
from kafka import KafkaProducer
from proxy import Exchange, Proxy, Verdict

pytest_plugins = ["clients_fixtures"]

PRODUCE = 0
COUNT = 40


class Breaker:
    """Lets every second answer to Produce perish on its way, up to a number of times."""

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
    """Sends numbered records one after another, each with a request of its own, and waits for every one."""
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


@pytest.mark.parametrize("verdict", [Verdict.CUT, Verdict.TEAR])
@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_a_record_whose_answer_was_lost_is_written_once(broker: Broker, client: str, verdict: Verdict) -> None:
    topic = create_topic(broker.address, unique("once"))
    with Proxy(broker.address) as proxy:
        breaker = proxy.on_response = Breaker(verdict, times=5)
        with forgiving_leaks():
            send_all(client, proxy.address, topic)
        assert breaker.left == 0, "the link did not break as often as planned"
    assert bounds(broker.address, topic) == (0, COUNT)
    assert [one.value for one in confluent_read(broker.address, topic, COUNT)] == [b"%d" % n for n in range(COUNT)]


def test_without_idempotence_the_same_link_makes_duplicates(broker: Broker) -> None:
    """So the test above tests something: the proxy does let the broker write before it cuts."""
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
