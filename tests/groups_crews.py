"""Stock consumers in groups, watched: what each owns, reads and commits is one history, and its faults are counted.

    with Crew(bootstrap, "orders", "billing", **KINDS["range"]) as crew:
        crew.hire(2)                                    two members join
        poll_until([crew], lambda: crew.owned() == [2, 2], "each has two partitions")
        crew.dismiss(crew.members[0])                   one leaves
    assert crew.history.is_well, crew.history.text()

One thread polls all members, so the events of a group have an order. A member commits what it has read before it reads
on. A member that is to be killed or paused is a process of its own: `Child`.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients_stock import close_consumer, confluent_consumer
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from minibroker.client.errors import ConnectionLost
from minibroker.clients.blocking import Client
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest

WAIT_S_MAX = 60.0
SESSION_MS = 3000
REQUEST_MS = 2000
HEARTBEAT_MS = 200
QUICK_GROUPS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=500",
    "group.consumer.min.session.timeout.ms=500",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    "group.consumer.min.heartbeat.interval.ms=100",
    f"group.consumer.heartbeat.interval.ms={HEARTBEAT_MS}",
    "group.consumer.assignment.interval.ms=0",
)
"""Settings of a broker whose groups notice everything within a moment."""

_CLASSIC: dict[str, object] = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
KINDS: dict[str, dict[str, object]] = {
    "range": {"partition.assignment.strategy": "range"} | _CLASSIC,
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"} | _CLASSIC,
    "consumer": {"group.protocol": "consumer"},
}
"""The settings of librdkafka for each way in which it shares partitions."""

_FOR_A_GROUP: dict[str, object] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "topic.metadata.refresh.interval.ms": 500,
    "socket.timeout.ms": REQUEST_MS,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}
# A deleted topic is reported to its readers, as Kafka's own client does.
_EXPECTED = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED}
_BATCH_MAX = 100
_CHILD = Path(__file__).with_name("groups_child.py")

Partition = tuple[str, int]


@dataclass
class History:
    """What the members of a group did, and what was wrong with it."""

    owners: dict[Partition, str] = field(default_factory=dict)
    acked: dict[Partition, int] = field(default_factory=dict)
    """The last commit of each partition that was acknowledged."""
    next: dict[Partition, int] = field(default_factory=dict)
    """The offset after the last one that was read."""
    values: dict[Partition, list[bytes]] = field(default_factory=dict)
    """The value of each offset that was read."""
    skipped: int = 0
    redelivered: int = 0
    redelivered_max: int = 0
    """A new owner reads again what was read since the last acknowledged commit, and no more."""
    takeovers: int = 0
    acked_s: list[float] = field(default_factory=list)
    """The times of the acknowledged commits."""
    gone_back: list[str] = field(default_factory=list)
    """Committed offsets that were lost: a read or a commit before the last acknowledged commit."""
    two_owners: list[str] = field(default_factory=list)
    """Partitions with two owners: given to a second one too early, or committed by an owner that had lost it."""
    errors: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Each event is noted under it, because the members may have threads of their own."""

    @property
    def is_well(self) -> bool:
        return not (self.skipped or self.gone_back or self.two_owners or self.redelivered > self.redelivered_max)

    def text(self) -> str:
        bad = f"{self.skipped} skipped, {self.redelivered} redelivered of {self.redelivered_max} allowed"
        counted = f"{sum(self.next.values()):,} read, {bad}, {len(self.gone_back)} offsets gone back"
        each = [
            f"{name}-{it}: read {offset}, acked {self.acked.get((name, it))}"
            for (name, it), offset in self.next.items()
        ]
        return "\n".join([counted, *each, *self.gone_back[:5], *self.two_owners[:5], *self.errors[-5:]])

    # Events

    def on_assigned(self, member: str, partition: Partition, *, is_orderly: bool) -> None:
        """A member owns a partition. In an orderly group its last owner has given it up before."""
        before = self.owners.get(partition)
        if is_orderly and before is not None:
            self.two_owners.append(f"{partition} was given to {member} while {before} had it")
        self.owners[partition] = member
        self.takeovers += 1
        self.redelivered_max += max(0, self.next.get(partition, 0) - self.acked.get(partition, 0))

    def on_revoked(self, member: str, partition: Partition) -> None:
        if self.owners.get(partition) == member:
            del self.owners[partition]

    def on_read(self, member: str, partition: Partition, offset: int, value: bytes) -> None:
        next_offset = self.next.get(partition, 0)
        if offset < self.acked.get(partition, 0):
            self.gone_back.append(f"{member} read {partition} at {offset}, after a commit of {self.acked[partition]}")
        self.skipped += max(0, offset - next_offset)
        self.redelivered += offset < next_offset
        if offset >= next_offset:
            self.values.setdefault(partition, []).append(value)
        self.next[partition] = max(next_offset, offset + 1)

    def on_committed(self, member: str, partition: Partition, offset: int) -> None:
        owner = self.owners.get(partition)
        if owner not in (None, member):
            self.two_owners.append(f"{member} committed {offset} of {partition}, which {owner} had")
        if offset < self.acked.get(partition, 0):
            self.gone_back.append(f"{member} committed {partition} at {offset} after {self.acked[partition]}")
        self.acked[partition] = offset
        self.acked_s.append(time.monotonic())

    def has_read(self, counts: Mapping[Partition, int]) -> bool:
        """Whether all these records have been read, and the commit of the last ones is acknowledged."""
        return all(min(self.next.get(it, 0), self.acked.get(it, 0)) >= count for it, count in counts.items())

    def check_committed(self, found: Mapping[Partition, int]) -> None:
        """Compare the coordinator's offsets with the acknowledged ones. A commit without an answer may count, too."""
        for partition, acked in self.acked.items():
            if found.get(partition, -1) < acked:
                self.gone_back.append(f"{partition} was committed at {acked}, but is {found.get(partition)}")


class Member:
    """A consumer of librdkafka in a group. It commits all that it reads."""

    def __init__(self, crew: "Crew", name: str, topics: Sequence[str], settings: Mapping[str, object]) -> None:
        self.name = name
        self.owned: set[Partition] = set()
        self.changes: list[str] = []
        """What the group has told this member."""
        self._history = crew.history
        self._is_orderly = crew.is_orderly
        self._is_eager = settings.get("partition.assignment.strategy") == "range"
        self._read: dict[Partition, int] = {}
        self.consumer: Consumer = confluent_consumer(crew.bootstrap, **settings)
        # The callbacks are methods, so the consumer is in a cycle with this object until it is closed.
        self.consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self) -> None:
        """Read what is there, up to a batch, and commit it."""
        for number in range(_BATCH_MAX):
            message = self.consumer.poll(0.01 if number == 0 else 0)
            if message is None:
                break
            if message.error():
                self._note(message.error())
                continue
            partition = (message.topic() or "", message.partition() or 0)
            offset = message.offset() or 0
            with self._history.lock:
                self._history.on_read(self.name, partition, offset, bytes(message.value() or b""))
            self._read[partition] = offset + 1
        self.commit()

    def commit(self) -> None:
        """Commit what was read since the last commit. What is refused is read again, by the next owner."""
        wanted = {it: offset for it, offset in self._read.items() if it in self.owned}
        self._read.clear()
        if not wanted:
            return
        try:
            found = self.consumer.commit(
                offsets=[TopicPartition(*it, offset) for it, offset in wanted.items()], asynchronous=False
            )
        except KafkaException as refused:
            self._read = wanted | self._read
            self._note(refused.args[0])
            return
        with self._history.lock:
            for it in found or ():
                if it.error is None:
                    self._history.on_committed(self.name, (it.topic, it.partition), it.offset)
                else:
                    self._note(it.error)

    def _note(self, error: KafkaError | None) -> None:
        if error is not None and error.code() not in _EXPECTED:
            self._history.errors.append(f"{self.name}: {error}")

    def close(self) -> None:
        """Leave the group, unless the member is static."""
        close_consumer(self.consumer)
        self._forget(self.owned)

    def _forget(self, partitions: set[Partition]) -> None:
        with self._history.lock:
            for it in list(partitions):
                self._history.on_revoked(self.name, it)
                self._read.pop(it, None)
        self.owned -= partitions

    def _on_assign(self, _consumer: Consumer, given: list[TopicPartition]) -> None:
        self.changes.append(f"+{sorted((it.topic, it.partition) for it in given)}")
        if self._is_eager:
            # An eager assignment is the whole one. librdkafka 2.16 does not revoke the last one if the topics have
            # changed before the application got it: it joins again, and the application gets both.
            self._forget(self.owned)
        with self._history.lock:
            for it in given:
                self.owned.add((it.topic, it.partition))
                self._history.on_assigned(self.name, (it.topic, it.partition), is_orderly=self._is_orderly)

    def _on_revoke(self, _consumer: Consumer, taken: list[TopicPartition]) -> None:
        self.changes.append(f"-{sorted((it.topic, it.partition) for it in taken)}")
        self.commit()
        self._forget({(it.topic, it.partition) for it in taken})

    def _on_lost(self, _consumer: Consumer, taken: list[TopicPartition]) -> None:
        self.changes.append(f"lost {sorted((it.topic, it.partition) for it in taken)}")
        self._forget({(it.topic, it.partition) for it in taken})


class Crew:
    """The members of one group. `is_orderly`: no member is lost, so no partition has two owners even for a moment."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], group: str, *, is_orderly: bool = True, **settings: object
    ) -> None:
        self.bootstrap = bootstrap
        self.topics = list(topics)
        self.group = group
        self.is_orderly = is_orderly
        self.history = History()
        self.members: list[Member] = []
        self._settings = _FOR_A_GROUP | {"group.id": group} | settings
        self._hired = 0

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        while self.members:
            self.dismiss(self.members[-1])

    def hire(self, count: int = 1, *, instance_id: str | None = None) -> Member:
        """Add members; return the last one. With an instance id it is static."""
        settings = self._settings | ({} if instance_id is None else {"group.instance.id": instance_id})
        for _ in range(count):
            self._hired += 1
            self.members.append(Member(self, f"member {self._hired}", self.topics, settings))
        return self.members[-1]

    def dismiss(self, member: Member) -> None:
        self.members.remove(member)
        member.close()

    def poll(self) -> None:
        for member in list(self.members):
            member.poll()

    def owned(self) -> list[int]:
        """How many partitions the members own, the fewest first."""
        return sorted(len(it.owned) for it in self.members)

    def text(self) -> str:
        """What the members own, what the group has told them, and what they have done."""
        told = "\n".join(f"{it.name}: {', '.join(it.changes)}" for it in self.members)
        return f"{self.group}: {self.owned()} {self.history.text()}\n{told}"

    def committed(self) -> dict[Partition, int]:
        """The offsets that the coordinator has now."""
        return committed(self.bootstrap, self.group, list(self.history.next))


def committed(bootstrap: str, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """The committed offsets of a group, as a consumer outside it asks for them."""
    consumer = confluent_consumer(bootstrap, **{"group.id": group, "log_level": 0})
    try:
        found = consumer.committed([TopicPartition(*it) for it in partitions], timeout=WAIT_S_MAX)
        return {(it.topic, it.partition): it.offset for it in found}
    finally:
        close_consumer(consumer)


def poll_until(crews: Sequence[Crew], is_done: Callable[[], object], what: str, seconds: float = WAIT_S_MAX) -> None:
    """Poll all members of all crews in turn until the condition holds."""
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            state = "\n".join(it.text() for it in crews)
            raise TimeoutError(f"not within {seconds:g} s: {what}\n{state}")
        for crew in crews:
            crew.poll()


@contextlib.contextmanager
def crews_of_each_kind(
    bootstrap: str,
    topics: Sequence[str],
    group: Callable[[str], str],
    *,
    is_orderly: bool = True,
    session_ms: int = SESSION_MS,
    request_ms: int = REQUEST_MS,
) -> Iterator[dict[str, Crew]]:
    """A crew for each way to share partitions. They work side by side, so they wait for their sessions together."""
    with contextlib.ExitStack() as stack:
        crews = {}
        for kind, settings in KINDS.items():
            patience = {"session.timeout.ms": session_ms, "socket.timeout.ms": request_ms}
            # In the new protocol the broker sets the session, and the client refuses to.
            patience = {name: ms for name, ms in patience.items() if name in _FOR_A_GROUP | settings}
            crew = Crew(bootstrap, topics, group(kind), is_orderly=is_orderly, **(settings | patience))
            crews[kind] = stack.enter_context(crew)
        yield crews


class Background:
    """Polls each member of some crews in a thread of its own, while a test does something else.

    A commit behind a JoinGroup on the same connection waits until the other members have joined. So a member that
    commits must not keep the others from being polled.
    """

    def __init__(self, crews: Iterable[Crew]) -> None:
        self._crews = list(crews)
        self._is_over = threading.Event()
        self._polled: dict[Member, threading.Thread] = {}
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Background":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for it in (self._watcher, *self._polled.values()):
            it.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            for member in [it for crew in self._crews for it in crew.members if it not in self._polled]:
                self._polled[member] = threading.Thread(target=self._run, args=(member,), daemon=True)
                self._polled[member].start()

    def _run(self, member: Member) -> None:
        # Without a pause, members whose commits are refused would keep the nodes busy with the next ones.
        while not self._is_over.wait(0.05):
            member.poll()


# Coordinators


def coordinator_of(address: str, group: str) -> int:
    """The node that coordinates a group; 0 while there is none, or the asked node closes the connection."""
    with contextlib.suppress(ConnectionLost), Client(address) as client:
        (found,) = client.send(FindCoordinatorRequest(coordinator_keys=[group])).coordinators
        return int(found.node_id) if found.error_code == ErrorCode.NONE else 0
    return 0


# A member in a process of its own


class Child:
    """A member that can be killed and paused. It reads, and commits only when it is told to."""

    def __init__(self, bootstrap: str, topics: Sequence[str], group: str, **settings: object) -> None:
        given = {"bootstrap.servers": bootstrap} | _FOR_A_GROUP | {"group.id": group} | settings
        command = [sys.executable, str(_CHILD), json.dumps(given), json.dumps(list(topics))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.owned: set[Partition] = set()
        self.read: dict[Partition, int] = {}
        self.answers: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on(json.loads(line))

    def _on(self, said: dict[str, Any]) -> None:
        self.owned |= {(topic, partition) for topic, partition in said.get("assigned", ())}
        self.owned -= {(topic, partition) for topic, partition in said.get("revoked", ())}
        for topic, partition, offset in said.get("read", ()):
            self.read[topic, partition] = offset + 1
        self.answers += said.get("answers", ())

    def commit(self) -> None:
        """Tell the member to commit all that it has read. Its answer is a code: 0, or that of the error."""
        assert self._process.stdin is not None
        self._process.stdin.write("commit\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for it in (self._process.stdin, self._process.stdout):
            if it is not None:
                it.close()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
