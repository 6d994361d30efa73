"""Three nodes and a producer that goes on while nodes die and pause and links break: 0 lost, 0 twice, 0 out of order.

The nodes are processes, killed with kill -9 and paused with SIGSTOP; the producer is librdkafka, idempotent, acks=all.
"""

import threading

import pytest
from brokers import eventually, unique
from clients_raw import PRODUCE, Batch, Connection, array, data32, header, i16, i32, record, string
from clients_stock import Message, bounds, confluent_read, confluent_write
from clusters import Cluster, Sender
from confluent_kafka import KafkaException
from proxy import Exchange, Verdict

from minibroker.wire.codes import ErrorCode

pytest_plugins = ["clusters_fixtures"]


class Breaker:
    """Loses every second answer to Produce on its way, half of it or all of it, a given number of times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self._seen = 0
        self._lock = threading.Lock()

    def __call__(self, _exchange: Exchange) -> Verdict:
        with self._lock:
            self._seen += 1
            if not self.left or self._seen % 2:
                return Verdict.PASS
            self.left -= 1
            return Verdict.TEAR if self.left % 2 else Verdict.CUT


def test_nothing_is_lost_while_followers_die_and_pause_and_links_break(cluster: Cluster) -> None:
    topic = cluster.create(unique("faults"), [[2, 3, 1], [1, 2, 3]], min_insync_replicas=2)
    with Sender(cluster, topic, partitions=2) as sender:
        sender.await_acks()
        # A follower dies, writes go on without it, and it catches up.
        cluster[3].kill()
        for partition in (0, 1):
            cluster.await_isr(topic, 1, 2, partition=partition)
        sender.await_acks()
        cluster[3].restart()
        for partition in (0, 1):
            cluster.await_isr(topic, 1, 2, 3, partition=partition)
        # A follower is paused for longer than replica.lag.time.max.ms.
        cluster[3].pause()
        for partition in (0, 1):
            cluster.await_isr(topic, 1, 2, partition=partition)
        sender.await_acks()
        cluster[3].resume()
        # A follower cannot reach one of the leaders.
        cluster.cut(3, 2)
        cluster.await_isr(topic, 1, 2, partition=0)
        cluster.await_isr(topic, 1, 2, 3, partition=1)
        sender.await_acks()
        cluster.heal()
        cluster.await_isr(topic, 1, 2, 3, partition=0)
        # Answers are lost on their way to the client, which sends again.
        breaker = cluster.on_produced = Breaker(times=10)
        eventually(lambda: breaker.left == 0, "the link has broken as often as planned")
        sender.await_acks()
        sender.finish()
    assert sender.check() > 200


def test_nothing_is_lost_while_leaders_and_the_controller_die(cluster: Cluster) -> None:
    topic = cluster.create(unique("leaders"), [[2, 3, 1], [1, 2, 3]], min_insync_replicas=2)
    before = cluster.state(topic, 0, at=3)
    assert before is not None
    with Sender(cluster, topic, partitions=2) as sender:
        sender.await_acks()
        # Metadata survive; and while there is no controller, the other nodes serve the partitions that they lead.
        cluster[1].kill()
        assert bounds(cluster.address_of(2), topic, 0)[1] > 0
        assert cluster.state(topic, 0, at=3) == before
        cluster[1].restart()
        sender.await_acks()
        # In-sync sets change again.
        cluster[3].kill()
        cluster.await_isr(topic, 1, 2)
        cluster[3].restart()
        cluster.await_isr(topic, 1, 2, 3)
        # A leader that comes back leads in a new epoch.
        cluster[2].kill()
        cluster[2].restart()
        eventually(
            lambda: (state := cluster.state(topic, 0, at=3)) and state.leader_epoch > before.leader_epoch, "epoch"
        )
        sender.await_acks()
        sender.finish()
    assert sender.check() > 200


def produce(topic: str, value: bytes, *, timeout_ms: int, acks: int = -1) -> bytes:
    partitions = array([i32(0) + data32(Batch(record(value)).encode())])
    return header(PRODUCE, 7) + string(None) + i16(acks) + i32(timeout_ms) + array([string(topic) + partitions])


def test_too_few_in_sync_refuse_writes_until_they_are_back(cluster: Cluster) -> None:
    topic = cluster.create(unique("few"), [[1, 2, 3]], min_insync_replicas=2)
    with Connection(cluster[1]) as leader:
        cluster[2].kill()
        cluster[3].kill()
        # The dead replicas count as in sync for a while, so the write waits for them in vain. No consumer may read it.
        assert leader.produce(produce(topic, b"waits", timeout_ms=300)).code == ErrorCode.REQUEST_TIMED_OUT
        cluster.await_isr(topic, 1)
        assert leader.produce(produce(topic, b"no", timeout_ms=300)).code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert leader.produce(produce(topic, b"weak", timeout_ms=300, acks=1)).code == ErrorCode.NONE
        assert bounds(cluster.address_of(1), topic) == (0, 0)
    # A stock client gets the error as well; one that may retry waits until enough replicas are in sync.
    with pytest.raises(KafkaException, match="NOT_ENOUGH_REPLICAS"):
        confluent_write(cluster.bootstrap, topic, [Message(b"refused")], acks="all", retries=0, log_level=0)
    with Sender(cluster, topic) as sender:
        cluster[2].restart()
        sender.await_acks()
        cluster[3].restart()
        cluster.await_isr(topic, 1, 2, 3)
        sender.finish()
    found = confluent_read(cluster.bootstrap, topic, bounds(cluster.bootstrap, topic)[1])
    assert [one.value for one in found] == [b"waits", b"weak", *(b"%d" % number for number in range(sender.sent))]
