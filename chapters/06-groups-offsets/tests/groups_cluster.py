"""The nodes of the world of groups: chapter 04's replicas, with this chapter's coordinators on the leader.

Everything that runs on a node is the broker's code: the handlers, the coordinators with their tasks and timers, the
cores, and the records as bytes in a replicated log. The event loop and the clock are simulated. After every event the
live state of the groups is compared with what a replay of the log gives.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from consumer_driver import prefix_matcher
from groups_loop import LoopProcess, SlowTurn
from groups_sessions import SessionMember
from groups_watch import Broken, differences
from partition_watch import Held, Mirror, WatchedDirectory
from replication_nodes import NAME
from simulated_machine import session_of

from minibroker.coordinators.coordinator import Coordinator, State
from minibroker.coordinators.group_hosting import GroupCoordinators
from minibroker.coordinators.sharding import StateStep
from minibroker.groups.keys import GroupSettings
from minibroker.groups.records import GroupMetadataKey, GroupRecord, decode
from minibroker.groups.shard import GroupShard
from minibroker.log.batch import batches
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image
from minibroker.metadata.names import GROUP_METADATA_TOPIC
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Call
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.replication.opening import open_replica
from minibroker.replication.replica import Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.simulation.links import Reply
from minibroker.simulation.trace import NOTE
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Request, Response, codes_in

if TYPE_CHECKING:
    from groups_world import World

OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)
EPOCH_MS = 1_000_000
"""The time of day at which the world begins."""
COMMIT_WHILE_LOADING = "commit while the groups are loaded"
"""The state of a run in which a commit had to wait until a new coordinator had loaded its groups."""


# Messages -------------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A request of a client."""

    number: int
    client: str
    version: int
    request: Request

    def __str__(self) -> str:
        it: Any = self.request
        name = type(it).__name__.removesuffix("Request")
        epoch = next((getattr(it, one) for one in _EPOCHS if hasattr(it, one)), "")
        return f"?{self.number} {name} {getattr(it, 'group_id', '')} {getattr(it, 'member_id', '')} {epoch}"


_EPOCHS = ("generation_id", "member_epoch", "generation_id_or_member_epoch")


class Told(NamedTuple):
    """The answer to a request. `is_stale` says that the node was no longer the leader, and could not suspect it."""

    number: int
    response: Response
    is_stale: bool

    def __str__(self) -> str:
        code = next((ErrorCode(it) for it in codes_in(self.response) if it), ErrorCode.NONE)
        more = f"{getattr(self.response, 'generation_id', '')}{getattr(self.response, 'member_epoch', '')}"
        return f"!{self.number} {type(self.response).__name__.removesuffix('Response')} {code.name} {more}"


class Outstanding(NamedTuple):
    """A request that a node has not answered yet."""

    since_ms: int
    asked: Asked


# The coordinators of a node -------------------------------------------------------------------------------------------


class SimulatedClock:
    """The clocks of coordinators, which come from the seed."""

    _node: "Node"

    def now_ms(self) -> int:
        return EPOCH_MS + self._node.world.scheduler.now_ms

    def wall_clock_ms(self) -> int:
        return EPOCH_MS + self._node.process.now_ms


class SimulatedCoordinators(SimulatedClock, GroupCoordinators):
    """The coordinators of a node, with a clock and member ids that come from the seed."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        authority = SimpleNamespace(image=node.image, subscribe=self._subscribe)
        machine: Any = SimpleNamespace(waiting=node.waiting, config=NodeConfig(), on_ended=on_ended, begin=node.begin)
        cluster: Any = SimpleNamespace(authority=authority)
        super().__init__(machine, cluster, may_be_fenced=node.may_be_fenced)
        self.turn: Any = SlowTurn(node.slice_ms)
        self.authority = authority
        self.handlers: dict[ApiKey, Callable[[Call[Any]], Any]] = {}
        self.open()
        registry: Any = SimpleNamespace(add=self.handlers.__setitem__)
        store: Any = SimpleNamespace(partition=lambda *_name: node.local)
        self.add_handlers(registry, store)
        node.process.after(0, self.start)

    def _subscribe(self, listener: Callable[[Image, Image], None]) -> None:
        self._listener = listener

    def on_metadata(self, new: Image) -> None:
        """The node learns of new metadata."""
        old, self.authority.image = self.authority.image, new
        self._listener(old, new)

    def settings(self, _group_id: str = "") -> GroupSettings:
        return self._node.world.settings

    def new_shard(self) -> GroupShard:
        return self._node.world.new_shard(self._node.new_member_id, self.authority.image)

    def _new_coordinator(self, partition: TopicPartition) -> Coordinator[GroupShard]:
        return WatchedCoordinator(self._store.partition(*partition), self)

    @property
    def coordinator(self) -> "WatchedCoordinator | None":
        """The coordinator, if this node leads."""
        found = self._coordinators.get(OFFSETS)
        assert found is None or isinstance(found, WatchedCoordinator)
        return found


class WatchedCoordinator(Coordinator[GroupShard]):
    """Remembers the groups whose last record the log has refused."""

    def _begin_load(self) -> None:
        self.refused: set[str] = set()
        super()._begin_load()

    def _append(self, step: StateStep) -> ErrorCode:
        code = super()._append(step)
        records: Iterable[Any] = step.records
        found = {it.key.group_id for it in records if isinstance(it.key, GroupMetadataKey)}
        self.refused = self.refused | found if code else self.refused - found
        return code


def on_ended(task: Any) -> None:
    if not task.cancelled():
        task.result()


class Listener:
    """Tells the coordinators which role the replica has, under the name that they know."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def on_leader(self, _partition: TopicPartition, epoch: int) -> None:
        self._node.coordinators.on_leader(OFFSETS, epoch)

    def on_resigned(self, _partition: TopicPartition) -> None:
        self._node.world.on_resigned(self._node)
        self._node.coordinators.on_resigned(OFFSETS)


# A node ---------------------------------------------------------------------------------------------------------------


class Node(SessionMember):
    """A broker with one replica of `__consumer_offsets`, and the coordinator while it leads."""

    world: "World"

    def __init__(self, world: "World", node_id: int, config: TopicConfig) -> None:
        super().__init__(world, node_id, config)
        self.process: LoopProcess = LoopProcess(world.scheduler, world.trace, self.name, self.on_died)
        self.process.after_run = self.after_run
        self._serials = count(1)
        self.image = world.image
        self.outstanding: dict[int, Outstanding] = {}
        self._answers: list[tuple[Asked, Reply, Response]] = []
        self._watched: GroupShard | None = None
        self.resumed_ms = 0
        """When the process was last resumed."""

    def open_replica(self) -> None:
        """Open the partition from the disk, with coordinators that hear of leadership."""
        self.image = self.world.image
        self.waiting: Waiting[Response] = Waiting()
        self.outstanding, self._answers, self._watched = {}, [], None
        self.coordinators = SimulatedCoordinators(self)
        mirror = Mirror()
        data = WatchedDirectory(self.files, mirror)
        local, replica = open_replica(
            data,
            self.files,
            NAME,
            self.config,
            node_id=self.node_id,
            outbox=self.outbox,
            wake=self._wake,
            lag_ms_max=self.world.lag_ms_max,
            listeners=[Listener(self)],
        )
        self.data, self.mirror, self.local, self.replica = data, mirror, local, replica
        self._seen = (-1, -1, replica.high_watermark)
        self._start_seen = replica.log.log_start_offset

    def _wake(self, key: object) -> None:
        super()._wake(key)
        if isinstance(key, Hashable):
            self.waiting.wake(key)

    def begin(self, work: Any) -> None:
        """Run a task for as long as the process lives."""
        self.process.loop.create_task(work).add_done_callback(on_ended)

    def slice_ms(self) -> int:
        """How long a slice of a load takes."""
        return self.chance.choice((0, 1, 5, 40))

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{self.node_id}.{self.process.lives}.{next(self._serials)}"

    def on_metadata(self, image: Image) -> None:
        """The node learns of new topics."""
        if image.offset > self.image.offset:
            self.image = image
            self.coordinators.on_metadata(image)

    @property
    def shard(self) -> GroupShard | None:
        """The groups, if this node coordinates them."""
        it = self.coordinators.coordinator if self.process.is_alive and self.replica is not None else None
        return it.shard if it is not None and it._state is State.ACTIVE else None

    # Serving ----------------------------------------------------------------------------------------------------------

    def serve(self, asked: Any, reply: Reply) -> None:
        """Pass a request to its handler, as the broker does."""
        it: Asked = asked
        key = it.request.schema.key
        assert key is not None
        header = RequestHeader(key, it.version, it.number, it.client)
        call = Call(it.request, it.version, header, self.process.now_ms, session_of(it.client))
        self.outstanding[it.number] = Outstanding(self.world.scheduler.now_ms, it)
        coordinator = self.coordinators.coordinator
        if key == ApiKey.OFFSET_COMMIT and coordinator is not None and coordinator._state is State.LOADING:
            self.world.states.reach(COMMIT_WHILE_LOADING)
        try:
            answer = self.coordinators.handlers[ApiKey(key)](call)
        except Disconnect as error:
            self._disconnect(it, error)
            return
        complete, fail = partial(self._complete, it, reply), partial(self._disconnect, it)
        if isinstance(answer, Wait):
            self.waiting.park(answer, complete, now_ms=self.coordinators.now_ms(), fail=fail)
        else:
            complete(answer)

    def _disconnect(self, asked: Asked, error: Exception) -> None:
        """The client gets no answer, and asks again when it gives up."""
        if not isinstance(error, Disconnect):
            raise error
        self.outstanding.pop(asked.number, None)

    def _complete(self, asked: Asked, reply: Reply, response: Response) -> None:
        self._answers.append((asked, reply, response))

    def _send_answers(self) -> None:
        """Send what is ready. Requests that are refused together are a set, so the order is set here."""
        answers, self._answers = sorted(self._answers, key=lambda it: it[0].number), []
        for asked, reply, response in answers:
            self.outstanding.pop(asked.number, None)
            replica, decided = self.replica, self.world.partition
            is_replaced = replica is None or replica.leader_epoch != decided.leader_epoch
            # A node that was fenced after its session must not answer from an old state.
            is_stale = is_replaced and not self.world.authority.is_fenced(self.node_id)
            reply(Told(asked.number, response, is_stale))

    # After every event ------------------------------------------------------------------------------------------------

    def after_run(self) -> None:
        if self.replica is None:
            return
        self.waiting.settle()
        super().after_run()
        if self._answers:
            self._send_answers()
        self._check_replay()

    def _check_advance(self, replica: Replica, batches: list[Held]) -> None:
        super()._check_advance(replica, batches)
        self.world.on_durable(replica)

    def _check_replay(self) -> None:
        """The live state is what another node would load from this log."""
        shard, coordinator = self.shard, self.coordinators.coordinator
        if shard is None or coordinator is None or coordinator._collected:
            return
        if shard is not self._watched:
            self._watched, self._replayed_to = shard, 0
            self._shadow = self.world.new_shard(self.new_member_id, self.image)
            self.world.trace.happened(self.name, NOTE, "coordinates the groups")
            self.world.states.reach("coordinator loaded")
        assert self.replica is not None
        touched: set[str] = set()
        for record, offset in records_of(self.replica, self._replayed_to, self.replica.log.log_end_offset):
            self._shadow.replay(record, offset)
            touched.add(record.key.group_id)
        self._replayed_to = self.replica.log.log_end_offset
        for group_id in sorted(touched):
            found = differences(group_id, shard, self._shadow, coordinator.refused)
            if found:
                raise Broken(22, f"{self.name}, group {group_id}: {found}")


def records_of(replica: Replica, start: int, end: int) -> list[tuple[GroupRecord, int]]:
    """The records between two offsets of a log, decoded from their bytes."""
    found: list[tuple[GroupRecord, int]] = []
    offset = start
    while offset < end:
        for batch in batches(replica.log.read(offset, bytes_max=1 << 20, upto_offset=end).read()):
            for it in batch.records():
                assert it.key is not None
                record = decode(it.key, it.value)
                assert record is not None
                found.append((record, it.offset))
            offset = batch.header.next_offset
    return found


def new_shard(settings: GroupSettings, new_member_id: Callable[[str], str], image: Image) -> GroupShard:
    """An empty shard."""
    return GroupShard(
        settings=lambda _group_id: settings, new_member_id=new_member_id, matcher=prefix_matcher, image=image
    )
