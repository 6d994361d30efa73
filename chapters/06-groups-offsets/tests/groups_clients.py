"""The clients of the world of groups: members of both protocols, and an observer who reads committed offsets.

A client knows only what it was told. It has one connection to the node that it takes for the coordinator, gives up
requests that take too long, and then connects again. A member "consumes" by letting its positions grow, and commits
them. The number of the request and the name of the member are in the metadata of each commit, so that the log shows
whose commits were accepted.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from consumer_driver import topic_id
from groups_cluster import Asked, Told
from groups_watch import Broken, Note

from minibroker.groups.client_assignors import CLIENT_ASSIGNORS, Subscriber
from minibroker.groups.subscription import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.groups.tables.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker.groups.tables.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker.segments.checkpoint import TopicPartition
from minibroker.simulation.links import Link
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Timer
from minibroker.simulation.trace import NOTE
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, codes_in
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic

if TYPE_CHECKING:
    from groups_world import World

REQUEST_TIMEOUT_MS = 1800
TICK_MS = 200
COORDINATOR_GONE = {
    None,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
LOST = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH}
OUT = 0  # the epoch of a member that is not in its group


class Plan(NamedTuple):
    """What a member is, across all its lives."""

    group_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    regex: str | None = None
    assignors: tuple[str, ...] = ("range",)
    """For the classic protocol those of the client; for the new one at most one, the server's."""
    session_ms: int = 2000
    rebalance_ms: int = 2000
    version: int = 9


Then = Callable[[Told | None], None]
Pending = dict[int, tuple[Then, Timer]]
"""The requests of one connection that wait for their answers, by number."""


class Client:
    """A process with a connection to the coordinator."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(name)
        self.process = Process(world.scheduler, world.trace, name)
        self.link: Link | None = None
        self._pending: Pending = {}

    def ask(self, version: int, request: Request, then: Then, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Send a request. `then` gets the answer, or None if the connection breaks or the answer takes too long."""
        self.ask_as(next(self.world.numbers), version, request, then, timeout_ms=timeout_ms)

    def ask_as(
        self, number: int, version: int, request: Request, then: Then, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> None:
        if self.link is None or not self.link.is_open:
            self.connect()
        if self.link is None or not self.link.is_open:
            self.process.after(100, partial(then, None))
            return
        self.link.send(Asked(number, self.name, version, request))
        self._pending[number] = then, self.process.after(timeout_ms, partial(self._expire, number))

    def connect(self) -> None:
        node = self.find_node()
        if node is None:
            return
        # Each connection has its own: a client that was paused may connect again before it hears that a link broke.
        self._pending = {}
        self.link = Link(
            self.world.network,
            self.process,
            node.process,
            serve=node.serve,
            on_answer=partial(self._on_answer, self._pending),
            on_broken=partial(self._on_broken, self._pending),
        )
        node.links = [*(it for it in node.links if it.is_open), self.link]

    def find_node(self) -> Any:
        """The node to connect to."""
        return self.world.guess_leader(self.chance)

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.break_off()

    def _expire(self, number: int) -> None:
        # After a pause the timer may run after the answer.
        if number in self._pending:
            self.disconnect()

    def _on_answer(self, pending: Pending, told: Told) -> None:
        then, timer = pending.pop(told.number, (None, None))
        if then is not None and timer is not None:
            timer.cancel()
            then(told)

    def _on_broken(self, pending: Pending) -> None:
        while pending:
            then, timer = pending.pop(next(iter(pending)))
            timer.cancel()
            then(None)

    def end(self, how: str) -> None:
        """The process ends, and its connection with it."""
        if self.process.is_alive:
            self.process.kill(how)
        for _then, timer in self._pending.values():
            timer.cancel()
        self._pending.clear()
        self.disconnect()
        self.link = None


def code_of(told: Told | None) -> ErrorCode | None:
    """The first error in an answer, or NONE; None if there is no answer."""
    if told is None:
        return None
    return next((ErrorCode(it) for it in codes_in(told.response) if it), ErrorCode.NONE)


# What members have in common ------------------------------------------------------------------------------------------


class Member(Client):
    """A member of a group: it owns partitions, reads them, and commits its positions."""

    requires_stable = False
    """Whether it waits for offsets that are part of an open transaction."""
    is_stuck = False
    """Whether the process does not come to its next step, though its heartbeats go on."""

    def __init__(self, world: "World", name: str, plan: Plan) -> None:
        super().__init__(world, name)
        self.plan = plan
        self.heartbeat_ms = self.chance.choice((300, 500))
        self.commit_ms = self.chance.choice((150, 300, 600))

    def start(self) -> None:
        """Begin a new life, unless the process is alive."""
        if not self.process.is_alive:
            self.process.start()
            self.forget()

    def forget(self) -> None:
        """A new life begins. A static member has its instance id again, and nothing else."""
        self.member_id = ""
        self.epoch = OUT
        self.owned: dict[TopicPartition, int | None] = {}
        """The partitions that it may read, with the next offset, or None if that is not known yet."""
        self._claim = 0
        self._is_fetching = self._is_committing = False
        self._beat_ms = self._commit_ms = self.world.scheduler.now_ms
        self.process.after(1, self.begin)
        self.process.after(TICK_MS, self._tick)

    def begin(self) -> None:
        raise NotImplementedError

    def beat(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    def is_settled(self) -> bool:
        """Whether it is a member that knows where to read."""
        raise NotImplementedError

    def die_fenced(self) -> None:
        """Another process has taken its instance id."""
        self.world.states.reach("static member fenced")
        self.end("fenced")
        self.world.on_fenced(self)

    def _tick(self) -> None:
        now_ms = self.world.scheduler.now_ms
        self.consume()
        if now_ms - self._beat_ms >= self.heartbeat_ms:
            self._beat_ms = now_ms
            self.beat()
        if None in self.owned.values():
            self._fetch()
        if now_ms - self._commit_ms >= self.commit_ms:
            self.commit()
        self.process.after(TICK_MS // 2 + int(self.chance.random() * TICK_MS), self._tick)

    def consume(self) -> None:
        """Read some records of the owned partitions."""
        for partition, position in self.owned.items():
            if position is not None:
                self.owned[partition] = position + self.chance.randrange(4)

    # Owning -----------------------------------------------------------------------------------------------------------

    def gain(self, partitions: Collection[TopicPartition]) -> None:
        for it in sorted(partitions):
            self.owned[it] = None
        self._claim += 1
        if partitions:
            self._fetch()

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        for it in sorted(partitions):
            self.owned.pop(it, None)
        self._claim += 1

    def _fetch(self) -> None:
        wanted = [it for it, position in self.owned.items() if position is None]
        if self._is_fetching or not wanted:
            return
        self._is_fetching = True
        floors = {it: self.world.durable.floor((self.plan.group_id, *it)) for it in wanted}
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=[it.partition for it in wanted if it.topic == name])
            for name in sorted({it.topic for it in wanted})
        ]
        group = OffsetFetchRequestGroup(group_id=self.plan.group_id, topics=topics, **self.fetch_fields())
        request = OffsetFetchRequest(groups=[group], require_stable=self.requires_stable)
        self.ask(9, request, partial(self._on_fetched, self._claim, floors))

    def fetch_fields(self) -> dict[str, Any]:
        """Who asks for offsets."""
        return {}

    def _on_fetched(self, claim: int, floors: dict[TopicPartition, int], told: Told | None) -> None:
        self._is_fetching = False
        if told is None or code_of(told) is not ErrorCode.NONE:
            if code_of(told) in COORDINATOR_GONE:
                self.disconnect()
            return
        if told.is_stale:
            # A node that does not know yet that it was replaced answers from its old state, in Kafka as well.
            self.world.states.reach("offsets from a coordinator that was replaced")
            self.disconnect()
            return
        response: Any = told.response
        for topic in response.groups[0].topics:
            for it in topic.partitions:
                partition = TopicPartition(topic.name, it.partition_index)
                place = (self.plan.group_id, *partition)
                self.world.durable.on_fetched(place, it.committed_offset, floors[partition])
                if claim == self._claim and partition in self.owned:
                    self.owned[partition] = max(it.committed_offset, 0)

    # Committing -------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit all positions."""
        self._commit_ms = self.world.scheduler.now_ms
        known = {it: position for it, position in self.owned.items() if position is not None}
        if not known or self._is_committing or self.epoch <= OUT:
            return
        self._is_committing = True
        number = next(self.world.numbers)
        note = Note(number, self.name, self.member_id, self.epoch)
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=it.partition, committed_offset=position, committed_metadata=note.text()
                    )
                    for it, position in known.items()
                    if it.topic == name
                ],
            )
            for name in sorted({it.topic for it in known})
        ]
        request = OffsetCommitRequest(
            group_id=self.plan.group_id,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.plan.instance_id,
            topics=topics,
        )
        self.ask_as(number, 9, request, partial(self._on_committed, note, known))

    def _on_committed(self, note: Note, known: dict[TopicPartition, int], told: Told | None) -> None:
        self._is_committing = False
        response: Any = None if told is None else told.response
        for topic in response.topics if response is not None else ():
            for it in topic.partitions:
                partition = TopicPartition(topic.name, it.partition_index)
                if it.error_code == ErrorCode.NONE:
                    self.world.history.acks += 1
                    self.world.durable.on_acknowledged((self.plan.group_id, *partition), note, known[partition])
        code = code_of(told)
        if code is not None and code is not ErrorCode.NONE:
            self.world.on_commit_refused(code)
        if (note.member_id, note.epoch) == (self.member_id, self.epoch):
            self.on_commit_code(code)

    def on_commit_code(self, code: ErrorCode | None) -> None:
        """React to the result of a commit."""
        if code in COORDINATOR_GONE:
            self.disconnect()
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.die_fenced()


# The classic protocol -------------------------------------------------------------------------------------------------


class ClassicMember(Member):
    """A member of the classic protocol."""

    def __init__(self, world: "World", name: str, plan: Plan) -> None:
        super().__init__(world, name, plan)
        self.is_cooperative = "cooperative-sticky" in plan.assignors

    def forget(self) -> None:
        super().forget()
        self.phase = "out"
        self.turn = 0
        self.synced_epoch = OUT
        self.is_leader = False
        self.owes_join = False

    def end(self, how: str) -> None:
        # The next process with this instance id does not know that its group still waits for another generation.
        if self.process.is_alive and self.owes_join and self.plan.instance_id is not None:
            self.world.on_join_owed(self)
        super().end(how)

    def begin(self) -> None:
        self.join()

    def is_settled(self) -> bool:
        return self.phase == "stable" and None not in self.owned.values()

    def _next(self, phase: str) -> int:
        """Another phase begins: answers to earlier requests do not count."""
        self.phase = phase
        self.turn += 1
        return self.turn

    def lose_all(self, *, forgets_id: bool) -> None:
        """The group goes on without this member."""
        self.give_up(list(self.owned))
        self.epoch = self.synced_epoch = OUT
        if forgets_id:
            self.member_id = ""

    def commit(self) -> None:
        """Commit, unless a whole generation was missed: then another member may own what this one has read.

        A group that has lost all its members begins again with the first generation.
        """
        if 0 <= self.epoch - self.synced_epoch <= 1:
            super().commit()

    # Join -------------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        if not self.is_cooperative:
            self.commit()
            self.give_up(list(self.owned))
        turn, plan = self._next("joining"), self.plan
        metadata = encode_subscription(
            ConsumerProtocolSubscription(
                topics=list(plan.topics),
                owned_partitions=_grouped(self.owned, OwnedTopicPartitions),
                generation_id=self.epoch or -1,
            )
        )
        request = JoinGroupRequest(
            group_id=plan.group_id,
            session_timeout_ms=plan.session_ms,
            rebalance_timeout_ms=plan.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=plan.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=it, metadata=metadata) for it in plan.assignors],
        )
        self.ask(plan.version, request, partial(self._on_joined, turn), timeout_ms=self.world.rebalance_ms_max + 5000)

    def join_later(self) -> None:
        turn = self._next("waiting")
        self.process.after(50 + int(self.chance.random() * 300), partial(self._join_if, turn))

    def join_if_stable(self) -> None:
        if self.phase == "stable":
            self.join()

    def _join_if(self, turn: int) -> None:
        if turn == self.turn:
            self.join()

    def _on_joined(self, turn: int, told: Told | None) -> None:
        if turn != self.turn:
            return
        code = code_of(told)
        response: Any = None if told is None else told.response
        if code is ErrorCode.NONE:
            self._on_generation(response)
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.join()
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.die_fenced()
        else:
            if code in LOST:
                self.lose_all(forgets_id=True)
            if code in COORDINATOR_GONE:
                self.disconnect()
            self.join_later()

    def _on_generation(self, response: Any) -> None:
        self.member_id, self.epoch = response.member_id, response.generation_id
        self.owes_join = False
        self.is_leader = response.leader == self.member_id
        self._beat_ms = self.world.scheduler.now_ms
        assignments: list[SyncGroupRequestAssignment] = []
        if self.is_leader and response.members and not response.skip_assignment:
            assignments = self._assign(response)
        request = SyncGroupRequest(
            group_id=self.plan.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.plan.instance_id,
            protocol_type=response.protocol_type,
            protocol_name=response.protocol_name,
            assignments=assignments,
        )
        self._sync(self._next("syncing"), request)

    def _assign(self, response: Any) -> list[SyncGroupRequestAssignment]:
        """The leader's part."""
        members = {}
        for it in response.members:
            found = decode_subscription(it.metadata)
            owned = [TopicPartition(one.topic, number) for one in found.owned_partitions for number in one.partitions]
            members[it.member_id] = Subscriber(
                frozenset(found.topics), tuple(owned), found.generation_id, it.group_instance_id
            )
        counts = self.world.partition_counts()
        assignor = CLIENT_ASSIGNORS[response.protocol_name]
        assigned = assignor(members, counts)
        if assigned != assignor(dict(reversed(members.items())), counts):
            raise Broken(24, f"{response.protocol_name} with {members} and {counts}")
        self.world.assigned_counts[self.plan.group_id] = counts
        return [
            SyncGroupRequestAssignment(member_id=it, assignment=_encoded(partitions))
            for it, partitions in assigned.items()
        ]

    # Sync -------------------------------------------------------------------------------------------------------------

    def _sync(self, turn: int, request: SyncGroupRequest) -> None:
        if turn != self.turn:
            return
        if self.is_stuck:
            self.world.states.reach("member does not sync")
            self.process.after(200, partial(self._sync, turn, request))
            return
        timeout_ms = self.world.rebalance_ms_max + 5000
        self.ask(min(self.plan.version, 5), request, partial(self._on_synced, turn), timeout_ms=timeout_ms)

    def _on_synced(self, turn: int, told: Told | None) -> None:
        if turn != self.turn:
            return
        code = code_of(told)
        if code is ErrorCode.NONE and told is not None:
            self._on_assigned(told)
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.die_fenced()
        else:
            if code in LOST:
                self.lose_all(forgets_id=code is ErrorCode.UNKNOWN_MEMBER_ID or self.chance.random() < 0.5)
            if code in COORDINATOR_GONE:
                self.disconnect()
            self.join_later()

    def _on_assigned(self, told: Told) -> None:
        response: Any = told.response
        assigned = {
            TopicPartition(it.topic, number)
            for it in decode_assignment(response.assignment).assigned_partitions
            for number in it.partitions
        }
        owner = self.plan.instance_id or self.member_id
        self.world.durable.on_synced(self.plan.group_id, self.epoch, owner, sorted(assigned))
        self._next("stable")
        given_up = set(self.owned) - assigned
        if given_up:
            self.commit()
            self.give_up(given_up)
        self.synced_epoch = self.epoch
        self.gain(assigned - set(self.owned))
        if given_up:
            self.world.states.reach("partitions given up (cooperative)")
            self.owes_join = True
            self.join()

    # Heartbeats, and leaving ------------------------------------------------------------------------------------------

    def beat(self) -> None:
        if self.phase not in ("stable", "syncing"):
            return
        if self.phase == "stable" and self.is_leader and self.world.has_grown(self.plan.group_id):
            self.world.states.reach("leader joins again, a topic has grown")
            self.join()
            return
        request = HeartbeatRequest(
            group_id=self.plan.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.plan.instance_id,
        )
        self.ask(4, request, partial(self._on_beat, self.turn))

    def _on_beat(self, turn: int, told: Told | None) -> None:
        code = code_of(told)
        if turn != self.turn or code is ErrorCode.NONE:
            return
        if code in COORDINATOR_GONE:
            self.disconnect()
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.die_fenced()
        elif code in LOST:
            self.lose_all(forgets_id=code is ErrorCode.UNKNOWN_MEMBER_ID or self.chance.random() < 0.5)
            self.join()
        elif not (self.is_stuck and self.phase == "syncing"):
            self.join()

    def on_commit_code(self, code: ErrorCode | None) -> None:
        if code in LOST:
            self.lose_all(forgets_id=code is ErrorCode.UNKNOWN_MEMBER_ID)
            self.join()
        else:
            super().on_commit_code(code)

    def leave(self) -> None:
        """Leave the group; static members only stop."""
        if self.plan.instance_id is None and self.member_id:
            self.commit()
            members = [MemberIdentity(member_id=self.member_id, group_instance_id=None)]
            self.ask(5, LeaveGroupRequest(group_id=self.plan.group_id, members=members), lambda _told: None)


def _grouped(partitions: Collection[TopicPartition], kind: type[Any]) -> list[Any]:
    topics = sorted({it.topic for it in partitions})
    return [
        kind(topic=name, partitions=sorted(it.partition for it in partitions if it.topic == name)) for name in topics
    ]


def _encoded(partitions: Sequence[TopicPartition]) -> bytes:
    return encode_assignment(
        ConsumerProtocolAssignment(assigned_partitions=_grouped(partitions, AssignedTopicPartitions))
    )


# The new protocol -----------------------------------------------------------------------------------------------------


class ConsumerMember(Member):
    """A member of the new protocol (KIP-848)."""

    def forget(self) -> None:
        super().forget()
        self._is_beating = False
        self._target: set[TopicPartition] | None = None
        self._is_releasing = False
        self._is_silent_about_owned = False
        self.member_id = f"{self.name}.{self.process.lives}"

    def begin(self) -> None:
        self.beat()

    def is_settled(self) -> bool:
        is_done = self._target is None and not self._is_releasing
        return self.epoch > OUT and is_done and None not in self.owned.values()

    def fetch_fields(self) -> dict[str, Any]:
        return {"member_id": self.member_id, "member_epoch": self.epoch} if self.epoch > OUT else {}

    def lose_all(self) -> None:
        """The group goes on without this member: join again."""
        self.give_up(list(self.owned))
        self.epoch, self._target, self._is_releasing = OUT, None, False

    def beat(self) -> None:
        if self._is_beating or (self.is_stuck and self._is_releasing):
            return
        self._is_beating = True
        plan, is_full = self.plan, self.epoch == OUT or not self._is_silent_about_owned
        fields: dict[str, Any] = {}
        if is_full:
            owned = sorted(self.owned) if self.epoch else []
            names = sorted({it.topic for it in owned})
            partitions = {name: [it.partition for it in owned if it.topic == name] for name in names}
            fields = {
                "rebalance_timeout_ms": plan.rebalance_ms,
                "subscribed_topic_names": list(plan.topics),
                "subscribed_topic_regex": plan.regex,
                "server_assignor": plan.assignors[0] if plan.assignors else None,
                "topic_partitions": [
                    HeartbeatTopicPartitions(topic_id=topic_id(name), partitions=partitions[name]) for name in names
                ],
            }
        request = ConsumerGroupHeartbeatRequest(
            group_id=plan.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=plan.instance_id,
            **fields,
        )
        self.ask(1, request, partial(self._on_beat, self._claim, is_full))

    def _on_beat(self, claim: int, is_full: bool, told: Told | None) -> None:
        self._is_beating = False
        code = code_of(told)
        response: Any = None if told is None else told.response
        self._is_silent_about_owned = code is ErrorCode.NONE and (is_full or self._is_silent_about_owned)
        if claim != self._claim:
            self._is_silent_about_owned = False
        if code is ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self._on_assignment(response.assignment)
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.die_fenced()
        elif code in LOST or code is ErrorCode.GROUP_ID_NOT_FOUND:
            self.lose_all()
        elif code in COORDINATOR_GONE:
            self.disconnect()

    def _on_assignment(self, assignment: Any) -> None:
        names = self.world.image.topic_names
        self._target = {
            TopicPartition(names[it.topic_id], number) for it in assignment.topic_partitions for number in it.partitions
        }
        self._reconcile()

    def _reconcile(self) -> None:
        """Give up what is not in the target, report that, and only then take what is new."""
        if self._target is None or self._is_releasing:
            return
        given_up = set(self.owned) - self._target
        if given_up:
            self.commit()
            self._is_releasing = True
            self.process.after(self.chance.choice((1, 50, 400)), partial(self._release, self.epoch, given_up))
            return
        gained = self._target - set(self.owned)
        self._target = None
        if gained:
            self.gain(gained)
            self._tell_owned()

    def _release(self, epoch: int, given_up: set[TopicPartition]) -> None:
        if not self._is_releasing or epoch == OUT:
            return
        if self.is_stuck:
            self.world.states.reach("member does not give up partitions")
            self.process.after(200, partial(self._release, epoch, given_up))
            return
        self.give_up(given_up)
        self._is_releasing = False
        self._reconcile()
        self._tell_owned()

    def _tell_owned(self) -> None:
        self._is_silent_about_owned = False
        self.beat()

    def on_commit_code(self, code: ErrorCode | None) -> None:
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.lose_all()
        else:
            super().on_commit_code(code)

    def leave(self) -> None:
        """Leave the group; a static member only for a while."""
        if self.epoch <= OUT:
            return
        self.commit()
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.plan.group_id,
            member_id=self.member_id,
            member_epoch=-1 if self.plan.instance_id is None else -2,
            instance_id=self.plan.instance_id,
        )
        self.ask(1, request, lambda _told: None)


# The observer ---------------------------------------------------------------------------------------------------------


class Observer(Client):
    """Reads the committed offsets of all groups again and again."""

    def __init__(self, world: "World", name: str, group_ids: Sequence[str]) -> None:
        super().__init__(world, name)
        self.group_ids = group_ids
        self.process.start()
        self.process.after(500, self._look)

    def _look(self) -> None:
        self.process.after(400 + int(self.chance.random() * 600), self._look)
        floors = dict(self.world.durable.floors())
        groups = [OffsetFetchRequestGroup(group_id=it, topics=None) for it in self.group_ids]
        self.ask(9, OffsetFetchRequest(groups=groups), partial(self._on_offsets, floors))

    def _on_offsets(self, floors: dict[tuple[str, str, int], int], told: Told | None) -> None:
        if told is None or code_of(told) is not ErrorCode.NONE:
            self.disconnect()
            return
        if told.is_stale:
            self.world.states.reach("offsets from a coordinator that was replaced")
            self.disconnect()
            return
        response: Any = told.response
        found = {
            (group.group_id, topic.name, it.partition_index): it.committed_offset
            for group in response.groups
            for topic in group.topics
            for it in topic.partitions
        }
        for place, floor in floors.items():
            self.world.durable.on_fetched(place, found.get(place, -1), floor)
        if self.world.trace.is_kept:
            self.world.trace.happened(self.name, NOTE, f"{len(found)} offsets")
