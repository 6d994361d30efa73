"""Any node of a cluster may be killed, paused, cut off or stopped: 0 lost, 0 twice, 0 out of order.

The nodes are processes; the producer is librdkafka, idempotent, acks=all.
"""

import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from brokers import eventually, unique
from clients_raw import PRODUCE, Batch, Connection, array, data32, fetch, header, i16, i32, record, string
from clients_stock import Message, admin, bounds, confluent_consumer, confluent_read, confluent_take, confluent_write
from clusters import QuorumCluster, Sender
from confluent_kafka import ElectionType, TopicPartition

from minibroker.bench.outages import longest_gap_ms
from minibroker.client.errors import ClientError
from minibroker.clients.blocking import Client
from minibroker.wire.codes import ErrorCode

pytest_plugins = ["clusters_fixtures"]

EVERYBODY = (1, 2, 3)


def others(number: int) -> list[int]:
    return [it for it in EVERYBODY if it != number]


def led_by(number: int) -> list[int]:
    """An assignment whose preferred leader is that node."""
    return [number, *others(number)]


def produce(topic: str, value: bytes) -> bytes:
    partitions = array([i32(0) + data32(Batch(record(value)).encode())])
    return header(PRODUCE, 7) + string(None) + i16(-1) + i32(500) + array([string(topic) + partitions])


def test_nothing_is_lost_when_leader_controller_and_follower_are_killed(quorum: QuorumCluster) -> None:
    topic = quorum.create(unique("killed"), [led_by(it) for it in EVERYBODY], min_insync_replicas=2)
    with Sender(quorum, topic, partitions=3) as sender:
        sender.await_acks()
        for victim in (
            quorum.controller() % 3 + 1,  # leads a partition, and is not the controller
            quorum.controller(),  # is the controller, and leads another partition
            quorum.controller() % 3 + 1,  # leads nothing after its restart
        ):
            quorum[victim].kill()
            # Other nodes lead its partitions, and writes go on while it is down.
            for partition in range(3):
                quorum.leader(topic, partition, among=others(victim))
            sender.await_acks()
            quorum[victim].restart()
            for partition in range(3):
                quorum.await_isr(topic, *EVERYBODY, partition=partition)
        sender.finish()
    assert sender.check() > 300


def test_a_controller_that_was_paused_past_its_session_acks_nothing_and_steps_down(quorum: QuorumCluster) -> None:
    old = quorum.controller()
    topic = quorum.create(unique("paused"), [led_by(old)], min_insync_replicas=2)
    confluent_write(quorum.bootstrap, topic, [Message(b"before")], acks="all")
    with Connection(quorum[old]) as connection:
        quorum[old].pause()
        new = quorum.controller(among=others(old))
        leader = quorum.leader(topic, among=others(old))
        # The request arrives while the controller is paused. Without a majority it must not acknowledge it afterwards.
        connection.send(produce(topic, b"stale"))
        confluent_write(quorum.address_of(leader), topic, [Message(b"after")], acks="all")
        quorum[old].resume()
        code = connection.receive_produced().code
    assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS)
    state = quorum.quorum(at=new)
    assert state is not None
    assert state.leader_id != old
    quorum.await_isr(topic, *EVERYBODY)
    assert quorum.leader(topic, among=[old, leader]) == leader
    assert bounds(quorum.bootstrap, topic) == (0, 2)
    assert [it.value for it in confluent_read(quorum.bootstrap, topic, 2)] == [b"before", b"after"]


def test_a_controller_that_is_cut_off_is_replaced_and_knows_it(quorum: QuorumCluster) -> None:
    old = quorum.controller()
    topic = quorum.create(unique("cut"), [led_by(old), led_by(others(old)[0])], min_insync_replicas=2)
    with Sender(quorum, topic, partitions=2, timeout_ms=1000) as sender:
        sender.await_acks()
        quorum.cut_off(old)
        # The others elect a controller; the old one hears from no majority and steps down.
        quorum.controller(among=others(old))
        eventually(lambda: quorum.quorum(at=old) is None, f"node {old} steps down while it is cut off")
        for partition in (0, 1):
            quorum.leader(topic, partition, among=others(old))
        sender.await_acks()
        # Its log ends before what others have read. A consumer that heard so would begin again at the start.
        with Connection(quorum[old]) as connection:
            connection.send(fetch(topic, sender.sent))
            assert connection.receive() is None
        quorum.heal()
        for partition in (0, 1):
            quorum.await_isr(topic, *EVERYBODY, partition=partition)
        sender.finish()
    sender.check()


def test_a_node_that_is_told_to_stop_hands_over_its_partitions_first(quorum: QuorumCluster) -> None:
    """So does the controller: another one is elected before it ends."""
    old = quorum.controller()
    topic = quorum.create(unique("stopped"), [led_by(old)], min_insync_replicas=2)
    consumer = confluent_consumer(quorum.bootstrap, log_level=0)
    consumer.assign([TopicPartition(topic, 0, 0)])
    words = {number: len(quorum[number].log()) for number in others(old)}
    with Sender(quorum, topic) as sender:
        sender.await_acks()
        begun_s = time.monotonic()
        quorum[old].stop()
        sender.await_acks()
        gap_ms = longest_gap_ms(sender.acked_s[0], begun_s=begun_s, ended_s=time.monotonic())
        print(f"writes paused for {gap_ms} ms when the leader and controller was stopped")
        quorum[old].restart()
        quorum.await_isr(topic, *EVERYBODY)
        sender.finish()
    # No session had to expire, and no record was refused.
    for number, length in words.items():
        assert f"node {old} has been silent" not in quorum[number].log()[length:]
    assert sender.failed == []
    sender.check()
    assert [it.value for it in confluent_take(consumer, sender.sent)] == [b"%d" % it for it in range(sender.sent)]
    consumer.close()


def test_a_replica_that_finds_its_log_gone_is_not_in_sync(quorum: QuorumCluster) -> None:
    """It was the last in-sync replica: as a leader with an empty log it would make the follower truncate everything."""
    first, second = others(quorum.controller())
    topic = quorum.create(unique("gone"), [[first, second]])
    messages = [Message(b"%d" % it) for it in range(50)]
    confluent_write(quorum.bootstrap, topic, messages, acks="all")
    quorum[second].stop()
    quorum.await_isr(topic, first)
    quorum[first].stop()
    shutil.rmtree(quorum[first].data / f"{topic}-0")
    quorum[first].restart()
    assert f"missing logs: 1, the first is {topic}-0" in quorum[first].logs[-1].read_text()
    quorum[second].restart()

    def has_no_leader() -> bool:
        state = quorum.state(topic, at=second)
        return state is not None and (state.leader, state.isr) == (-1, frozenset())

    eventually(has_no_leader, "there is no leader, because no live replica is in sync")
    # An operator who knows which replica has the records elects it.
    quorum[first].stop()
    client = admin(quorum.bootstrap)
    client.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(topic, 0)]).result(20)
    quorum[first].restart()
    quorum.await_isr(topic, first, second)
    assert [it.value for it in confluent_read(quorum.bootstrap, topic, 50)] == [it.value for it in messages]


def test_no_client_is_told_that_there_are_no_brokers(quorum: QuorumCluster) -> None:
    """librdkafka would forget the brokers it knows. After all nodes were killed, all brokers are fenced at first."""
    counts: list[int] = []
    over = threading.Event()

    def ask(address: str) -> None:
        while not over.is_set():
            with suppress(ClientError), Client(address, timeout_ms=1000) as client:
                while not over.wait(0.002):
                    counts.append(len(client.metadata([]).brokers))

    threads = [threading.Thread(target=ask, args=(quorum[it].address,)) for it in EVERYBODY]
    for node in quorum.nodes.values():
        node.kill()
    for it in threads:
        it.start()
    quorum.start()
    over.set()
    for it in threads:
        it.join()
    assert min(counts) >= 1


def test_a_voter_whose_metadata_are_gone_does_not_vote(quorum: QuorumCluster) -> None:
    """With its vote, a node that has as little of the log could be elected."""
    number = others(quorum.controller())[0]
    topic = quorum.create(unique("metadata"), [led_by(number)])
    node = quorum[number]
    node.stop()
    metadata = node.data / "__cluster_metadata-0"
    metadata.rename(node.data.with_suffix(".aside"))
    node.begin()
    assert node.await_end() == 1
    assert "but its metadata log is empty: restore __cluster_metadata-0" in node.logs[-1].read_text()
    shutil.rmtree(metadata)
    node.data.with_suffix(".aside").rename(metadata)
    node.restart()
    quorum.await_isr(topic, *EVERYBODY)


class Flood:
    """A client that holds as many connections to a node as it can, and opens a new one for each that is closed."""

    def __init__(self, address: str, count: int) -> None:
        self._host, _colon, self._port = address.rpartition(":")
        self._count = count
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Flood":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        held: list[socket.socket] = []
        while not self._ends.wait(0.01):
            for it in [it for it in held if _is_closed(it)]:
                held.remove(it)
                it.close()
            with suppress(OSError):
                while len(held) < self._count:
                    held.append(socket.create_connection((self._host, int(self._port)), timeout=1))
        for it in held:
            it.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_client_that_takes_every_connection_locks_out_no_node(tmp_path: Path) -> None:
    with QuorumCluster(tmp_path, "max.connections=20") as cluster:
        topic = cluster.create(unique("flooded"), [[1, 2, 3]], min_insync_replicas=2)
        controller = cluster.controller()
        with Flood(cluster.address_of(controller), 60):
            eventually(lambda: "max.connections" in cluster[controller].log(), "the connections are all taken")
            for victim in others(controller):
                cluster[victim].kill()
                # A node is ready when the controller has accepted its registration.
                cluster[victim].restart()
        cluster.await_isr(topic, *EVERYBODY)
        assert cluster.controller() == controller
