"""The faults of `chaos`, each a named function. The docstring says what happens, in one line.

A scenario causes its faults and returns in words what it did. Faults that leave a majority may last when it returns:
writes go on meanwhile. Where no majority is left, the scenario starts nodes again itself. It calls `is_able` at that
moment: from then on the cluster has all that it needs. After each scenario all faults end, all nodes are started, and
all replicas must be in sync again.
"""

import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from brokers import unique
from clients_stock import Message, bounds, confluent_read, confluent_write
from clusters import Node, Sender
from failing_nodes import FailingCluster
from proxy import Verdict
from strangers import Stranger, forged

from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.clients.admin import (
    NewTopic,
    ResourceType,
    alter_configs,
    create_topics,
    delete_topics,
    list_reassignments,
    reassign_partitions,
)
from minibroker.clients.blocking import Client
from minibroker.replicas.peers import client_id_of
from minibroker.segments.checkpoint import TopicPartition

REPLICAS = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
ACKS = 20
# Longer than a session, and longer than a leader leads without a majority.
LASTS_S = 4.0
# Generous, because the machine may be busy with other work.
WAIT_S_MAX = 120.0
# Less than the hour by which the timestamp of a record may be ahead of the broker's clock.
_CLOCK_JUMP_S = 45 * 60
_TARGETS = ("leader", "controller", "follower")


@dataclass
class Scene:
    """A cluster under load, and the chance that decides about its faults."""

    cluster: FailingCluster
    topic: str
    sender: Sender
    chance: random.Random
    moments_s: list[float] = field(default_factory=list)
    """When the scenario began, and each time the cluster got back what it needs."""

    def begin(self) -> None:
        self.moments_s = [time.monotonic()]

    def is_able(self) -> None:
        """From now on the cluster has what it needs to acknowledge writes."""
        self.moments_s.append(time.monotonic())

    def await_acks(self) -> None:
        self.sender.await_acks(ACKS, seconds=WAIT_S_MAX)

    def check_nodes(self) -> None:
        """A node ends by itself only if its disk fails. It would be started again, and its end would be overlooked."""
        ends = {number: node.unexpected_end() for number, node in self.cluster.nodes.items()}
        assert not any(ends.values()), f"nodes have ended by themselves: {ends}"

    def await_in_sync(self) -> None:
        for partition in range(len(REPLICAS)):
            self.cluster.await_isr(self.topic, 1, 2, 3, partition=partition, seconds=WAIT_S_MAX)

    def wait(self, seconds_max: float) -> None:
        """Let some time pass, but not always the same."""
        time.sleep(self.chance.uniform(0, seconds_max))

    # Nodes

    def victim(self) -> tuple[int, str]:
        """A node to hit, and its description."""
        target = self.chance.choice(_TARGETS)
        if target == "leader":
            partition = self.chance.randrange(len(REPLICAS))
            number = self.cluster.leader(self.topic, partition)
            return number, f"node {number} (leader of {partition})"
        number = self.cluster.controller()
        if target == "follower":
            number = self.chance.choice(self.cluster.others(number))
        return number, f"node {number} ({target})"

    def some(self, count: int) -> list[int]:
        """Some nodes, in any order."""
        return self.chance.sample(list(self.cluster.nodes), count)

    def end(self, numbers: Iterable[int], how: Callable[[Node], None]) -> None:
        """Kill or stop nodes, all at the same time."""
        nodes = [self.cluster[it] for it in numbers]
        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(how, nodes))

    def start(self, numbers: Iterable[int]) -> None:
        """Start nodes, and do not wait for them: the cluster has what it needs."""
        for number in numbers:
            self.cluster[number].begin()
        self.is_able()

    # Administration

    def ask(self, what: str, request: Callable[[Client], object]) -> None:
        """Ask the cluster until it agrees. A request that is lost with a node may have been carried out."""

        def is_done() -> bool:
            self.check_nodes()
            with suppress(ClientError), Client(self.cluster.bootstrap) as client:
                return request(client) is not False
            return False

        until(is_done, what, seconds=WAIT_S_MAX, every_s=0.1)


# One node


def kill(scene: Scene) -> str:
    """One node is killed."""
    number, words = scene.victim()
    scene.cluster[number].kill()
    return words


def stop(scene: Scene) -> str:
    """One node is stopped with SIGTERM."""
    number, words = scene.victim()
    scene.cluster[number].stop()
    return words


def pause(scene: Scene) -> str:
    """One node is paused past its session and goes on as if nothing had happened."""
    number, words = scene.victim()
    scene.cluster[number].pause()
    time.sleep(LASTS_S)
    return words


def killed_while_starting(scene: Scene) -> str:
    """One node or all are killed, and again at any moment of their start, three times."""
    victims = scene.some(scene.chance.choice([1, 3]))
    scene.end(victims, Node.kill)
    for _ in range(3):
        scene.start(victims)
        scene.wait(2.0)
        scene.end(victims, Node.kill)
    scene.start(victims)
    return _nodes(victims)


# Several nodes


def two_killed(scene: Scene) -> str:
    """Two of three nodes are killed together and come back."""
    victims = scene.some(2)
    scene.end(victims, Node.kill)
    scene.wait(LASTS_S)
    scene.start(victims)
    return _nodes(victims)


def all_killed(scene: Scene) -> str:
    """All nodes are killed together, and all come back."""
    victims = scene.some(3)
    scene.end(victims, Node.kill)
    scene.start(victims)
    return _nodes(victims)


def all_stopped(scene: Scene) -> str:
    """All nodes are stopped with SIGTERM. Two come back, and writes go on before the third one does."""
    victims = scene.some(3)
    scene.end(victims, Node.stop)
    scene.start(victims[1:])
    scene.await_acks()
    return f"{_nodes(victims[1:])} came back first"


# Links


def cut_one_way(scene: Scene) -> str:
    """One node does not reach another, but the other direction is open."""
    victim, words = scene.victim()
    other = scene.chance.choice(scene.cluster.others(victim))
    sender, to = scene.chance.sample([victim, other], 2)
    scene.cluster.cut(sender, to, scene.chance.choice([Verdict.CUT, Verdict.DROP]))
    time.sleep(LASTS_S)
    return f"{words}: node {sender} did not reach node {to}"


def cut_off(scene: Scene) -> str:
    """One node reaches no other and is reached by none."""
    victim, words = scene.victim()
    scene.cluster.cut_off(victim, scene.chance.choice([Verdict.CUT, Verdict.DROP]))
    time.sleep(LASTS_S)
    return words


# Changes of the cluster


def moves(scene: Scene) -> str:
    """Every partition loses a replica and gets it back. One node or all are killed during each of the two moves."""
    return ", then ".join(_move(scene, it) for it in ([replicas[:2] for replicas in REPLICAS], REPLICAS))


def _move(scene: Scene, replicas: Iterable[list[int]]) -> str:
    number, words = scene.victim()
    victims = scene.chance.choice([[number], scene.some(3)])
    wanted = {TopicPartition(scene.topic, number): nodes for number, nodes in enumerate(replicas)}
    scene.ask("the move begins", lambda client: reassign_partitions(client, wanted))
    scene.wait(0.5)
    scene.end(victims, Node.kill)
    scene.wait(LASTS_S)
    # With two replicas, the writes of some partitions have waited for these nodes.
    scene.start(victims)
    scene.ask("the move ends", lambda client: not list_reassignments(client))
    scene.await_acks()
    return words if victims == [number] else _nodes(victims)


def deletions(scene: Scene) -> str:
    """A topic is deleted and created again while a node is down, which must not bring the old records back."""
    victim, words = scene.victim()
    topic = unique("deleted")
    for value in (b"old", b"new"):
        new = NewTopic(topic, assignments=dict(enumerate(REPLICAS)), configs={"min.insync.replicas": "2"})
        scene.ask(f"{topic} is created", lambda client, new=new: _exists(client, new))  # type: ignore[misc]
        for partition in range(len(REPLICAS)):
            _write(scene, topic, partition, value)
        if value == b"old":
            scene.cluster[victim].kill()
            scene.ask(f"{topic} is deleted", lambda client: _is_gone(client, topic))
    scene.start([victim])
    for partition in range(len(REPLICAS)):
        scene.cluster.await_isr(topic, 1, 2, 3, partition=partition, seconds=WAIT_S_MAX)
        assert bounds(scene.cluster.bootstrap, topic, partition) == (0, 1)
        (found,) = confluent_read(scene.cluster.bootstrap, topic, 1, partition=partition)
        assert found.value == b"new"
    scene.ask(f"{topic} is deleted again", lambda client: _is_gone(client, topic))
    folders = [node.data for node in scene.cluster.nodes.values()]
    what = f"no node has a file of {topic}"
    until(lambda: not any([*it.glob(f"{topic}-*")] for it in folders), what, seconds=WAIT_S_MAX, every_s=0.1)
    return words


def _write(scene: Scene, topic: str, partition: int, value: bytes) -> None:
    settings = {"acks": "all", "log_level": 0}
    confluent_write(scene.cluster.bootstrap, topic, [Message(value)], partition=partition, **settings)


def _exists(client: Client, new: NewTopic) -> bool:
    # An earlier attempt may have created it, although its answer was lost.
    if new.name not in {it.name for it in client.metadata(None).topics}:
        create_topics(client, [new])
    return True


def _is_gone(client: Client, topic: str) -> bool:
    if topic in {it.name for it in client.metadata(None).topics}:
        delete_topics(client, [topic])
    return True


# Disks and clocks


def disk_error(scene: Scene) -> str:
    """The disk of one node fails: its flushes end with EIO, and the node ends by itself."""
    number, words = scene.victim()
    node = scene.cluster.nodes[number]
    node.mark.write_text("/")

    def is_ended() -> bool:
        # Every change of the metadata is flushed by every voter.
        days = scene.chance.randrange(10, 1000)
        with suppress(ClientError), Client(scene.cluster.bootstrap) as client:
            alter_configs(client, ResourceType.TOPIC, scene.topic, {"retention.ms": str(days * 24 * 3600 * 1000)})
        return not node.is_alive()

    until(is_ended, f"node {number} ends because of its disk", seconds=WAIT_S_MAX, every_s=0.1)
    assert "Input/output error" in node.last_words()[-1], node.last_words()[-1]
    return words


def disks_full(scene: Scene) -> str:
    """All disks are full, nodes end, start on full disks and end again; then there is room again."""
    nodes = scene.cluster.nodes
    for node in nodes.values():
        node.full.touch()
    _await_full(scene)
    for node in nodes.values():
        node.begin()
    _await_full(scene)
    for node in nodes.values():
        node.full.unlink()
    scene.start(nodes)
    return "all nodes"


def _await_full(scene: Scene) -> None:
    """Wait until full disks have ended two nodes, and kill the last one: it may have nothing to write."""
    until(lambda: len(scene.cluster.living()) < 2, "full disks end nodes", seconds=WAIT_S_MAX)
    for node in scene.cluster.nodes.values():
        if node.is_alive():
            node.kill()
        else:
            assert "No space left on device" in node.last_words()[-1], node.last_words()[-1]


def clock_jump(scene: Scene) -> str:
    """The time of day jumps on one node or on all, forward or back, and later returns."""
    victims = scene.some(scene.chance.choice([1, 3]))
    by_s = scene.chance.choice([-_CLOCK_JUMP_S, _CLOCK_JUMP_S])
    for number in victims:
        scene.cluster.nodes[number].clock.write_text(str(by_s))
    time.sleep(LASTS_S)
    return f"{_nodes(victims)}, by {by_s // 60} minutes"


# Strangers


def stranger(scene: Scene) -> str:
    """A client forges the requests of nodes, lies, stalls and sends hostile frames, to all nodes at once."""
    with Client(scene.cluster.bootstrap) as client:
        metadata = client.metadata([scene.topic])
    cluster_id, topic_id = metadata.cluster_id or "", metadata.topics[0].topic_id
    strangers = []
    with ExitStack() as stack:
        for number, node in scene.cluster.nodes.items():
            acts_for = scene.chance.choice(scene.cluster.others(number))
            requests = forged(cluster_id, scene.topic, topic_id, node=acts_for, to=number)
            one = Stranger(node, scene.topic, requests, client_id=client_id_of(acts_for))
            strangers.append(stack.enter_context(one))
        time.sleep(LASTS_S)
    complaints = [it for one in strangers for it in one.complaints]
    assert not complaints, complaints
    return f"{sum(it.sent for it in strangers)} requests and frames"


def _nodes(numbers: Iterable[int]) -> str:
    listed = sorted(numbers)
    return f"node{'s' if len(listed) > 1 else ''} {', '.join(str(it) for it in listed)}"


Scenario = Callable[[Scene], str]
SCENARIOS: dict[str, Scenario] = {
    it.__name__.replace("_", "-"): it
    for it in (
        *(kill, stop, pause, killed_while_starting),
        *(two_killed, all_killed, all_stopped),
        *(cut_one_way, cut_off),
        *(moves, deletions),
        *(disk_error, disks_full, clock_jump),
        stranger,
    )
}
