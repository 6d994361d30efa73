"""Nodes of a whole cluster: each has a member of the quorum with a controller, and a broker with a replica.

The broker is chapter 04's node. Its authority is the node that it takes for the leader of the quorum, and it acts on
committed metadata.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from partition_watch import Mirror
from raft_cluster import QUORUM_WIRE, QuorumNode
from replication_cluster import Node
from replication_messages import WIRE, Answered, alter_request, registration_request
from replication_nodes import ENDPOINTS, NAME, TOPIC_ID
from simulated_machine import Wire

from minibroker.controller.balancing import LeaderBalance
from minibroker.controller.deciding import Controller
from minibroker.controller.fencing import FenceBroker
from minibroker.controller.lifecycle import BrokerState, Heartbeat, RegisterFenced
from minibroker.controller.reassignment import alter_moving_partitions
from minibroker.controller.sessions import Sessions
from minibroker.controller.snapshot import records_of
from minibroker.controller.tables.broker_heartbeat import BrokerHeartbeatRequest
from minibroker.metadata.authority import Proposal
from minibroker.metadata.broker_commands import Registration
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Builder, Image, PartitionImage
from minibroker.metadata.records import decode_record, encode_record
from minibroker.raft.messages import SnapshotId
from minibroker.replication.authority import AlteredPartition, AlterPartitions, IsrChange
from minibroker.replication.leader import Altered, IsrProposal
from minibroker.simulation.checker import Violation
from minibroker.simulation.links import Reply
from minibroker.simulation.trace import NOTE
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request

if TYPE_CHECKING:
    from controller_world import World

HEARTBEAT_MS = 400
SESSION_CHECK_MS = 200
ASK_MS = 400
DECIDE_MS_MAX = 2000


class Ask(NamedTuple):
    """A command for the active controller."""

    command: Command[Any]

    def __str__(self) -> str:
        return str(self.command)


class Told(NamedTuple):
    """The result of a command."""

    result: Any

    def __str__(self) -> str:
        return str(self.result)


@lru_cache
def _heartbeat_request(broker_id: int) -> Request:
    return BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=0, current_metadata_offset=0, want_fence=False, want_shut_down=False
    )


_REQUESTS: Mapping[type, Callable[[int], Request]] = {
    Heartbeat: _heartbeat_request,
    RegisterFenced: registration_request,
    AlterPartitions: alter_request,
}

CONTROLLER_WIRE: Wire = {
    **WIRE,
    **QUORUM_WIRE,
    Ask: lambda it: _REQUESTS[type(it.command)](it.command.broker_id),
}


# The member of the quorum ---------------------------------------------------------------------------------------------


class ControllerHost(QuorumNode):
    """A whole node: its process runs the member of the quorum, the controller, and the broker."""

    world: "World"

    def __init__(self, world: "World", node_id: int) -> None:
        super().__init__(world, node_id)
        self.sessions = Sessions(world.session_ms)
        self.balance = LeaderBalance(world.balance_ms)
        self.broker: Broker

    # Process ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        super().open()
        self.broker.open()

    def on_opened(self) -> None:
        self._asked: dict[Proposal[Any], Reply] = {}
        self.controller = Controller(self.raft, self._image(), clock=lambda: 0, done=self._on_done)
        self.controller.on_active = self._on_active
        self.controller.subscribe(self._on_image)
        self._checked_ms = self.process.now_ms
        self.process.after(SESSION_CHECK_MS, self._keep_sessions)

    def _image(self) -> Image:
        """The image of the newest snapshot."""
        empty = Image(cluster_id="simulated")
        if self.snapshots.latest is None:
            return empty
        builder, values = Builder(empty), self.snapshots.values()
        end_offset = self.snapshots.latest.end_offset
        for number, value in enumerate(values):
            builder.fold(decode_record(value), end_offset - len(values) + number)
        return replace(builder.build(), offset=end_offset - 1)

    def on_snapshot_taken(self, snapshot: SnapshotId) -> None:
        self.controller.reset(self._image())

    def folded(self) -> tuple[int, list[bytes]]:
        image = self.controller.image
        return image.offset + 1, [encode_record(record) for record in records_of(image)]

    def catch_up(self) -> None:
        self.controller.catch_up()

    def end(self, how: str) -> None:
        super().end(how)
        self.broker.hang_up()

    def stop(self) -> None:
        if self.process.is_alive and not self.process.is_paused:
            self.process.run(self.broker.close)
            super().stop()

    def cut_power(self) -> None:
        super().cut_power()
        self.broker.on_power_cut()

    def forget_epoch(self) -> None:
        self.broker.forget_epoch()

    def lose_disk(self) -> None:
        super().lose_disk()
        self.broker.on_power_cut()
        self.broker.disk = self.disk

    def after_run(self) -> None:
        super().after_run()
        self.broker.after_run()

    # Controller -------------------------------------------------------------------------------------------------------

    def _on_active(self) -> None:
        self.sessions.begin(self.controller.image.brokers, self.process.now_ms)
        self.balance.begin(self.process.now_ms)

    def _on_image(self, _old: Image, new: Image) -> None:
        self.world.on_image(self, new)
        self.broker.on_image(new)

    def _keep_sessions(self) -> None:
        self.process.after(SESSION_CHECK_MS, self._keep_sessions)
        now_ms = self.process.now_ms
        if now_ms - self._checked_ms > self.sessions.session_ms / 2:
            self.sessions.begin(self.controller.image.brokers, now_ms)
        self._checked_ms = now_ms
        if self.controller.is_active:
            for broker_id in self.sessions.silent(self.controller.image.live_brokers(), now_ms):
                self.world.states.reach("session expired")
                self.controller.propose(FenceBroker(broker_id))
            balance = self.balance.tick(self.controller.image, now_ms)
            if balance is not None:
                self.world.states.reach("preferred leader elected")
                self.controller.propose(balance)

    def on_command(self, ask: Ask, reply: Reply) -> None:
        """Handle a command of a broker that takes this node for the active controller."""
        command = ask.command
        if isinstance(command, Heartbeat):
            known = self.controller.image.brokers.get(command.broker_id)
            if known is not None and known.epoch == command.broker_epoch:
                self.sessions.touch(command.broker_id, self.process.now_ms)
        before = self._uncommitted()
        proposal = self.controller.propose(command)
        if isinstance(command, AlterPartitions):
            self._check_altered(command, before)
        if proposal.is_done:
            reply(Told(proposal.result))
            return
        self._asked[proposal] = reply
        self.process.after(DECIDE_MS_MAX, partial(self._forget_asked, proposal))

    def _uncommitted(self) -> PartitionImage | None:
        """The partition with uncommitted changes, if this node is active: later commands are checked against that."""
        ahead = self.controller._ahead
        return None if ahead is None else ahead.partition(NAME)

    def _check_altered(self, command: AlterPartitions, before: PartitionImage | None) -> None:
        """Check that only a leader that knows the current in-sync set changes it."""
        after, (change,) = self._uncommitted(), command.changes
        if before is None or after is None or before.partition_epoch == after.partition_epoch:
            return
        if (change.leader_epoch, change.partition_epoch) != (before.leader_epoch, before.partition_epoch):
            raise Violation(13, f"{change} was accepted on {before}")

    def _forget_asked(self, proposal: Proposal[Any]) -> None:
        self._asked.pop(proposal, None)

    def _on_done(self, proposal: Proposal[Any]) -> None:
        reply = self._asked.pop(proposal, None)
        if reply is not None:
            reply(Told(proposal.result))

    def ask(self, command: Command[Any], then: Callable[[Any], None]) -> None:
        """Ask the node that this one takes for the leader; there may never be a response."""
        target = self.world.quorum.get(self.raft.leader_id)
        if target is not None:
            assert isinstance(target, ControllerHost)
            request = Ask(command)
            self.world.network.ask(
                self.process,
                target.process,
                request,
                partial(target.on_command, request),
                lambda told: then(told.result),
            )


# The broker -----------------------------------------------------------------------------------------------------------


class Broker(Node):
    """Chapter 04's node, registered with the controller; it has a replica while the metadata assign one to it."""

    world: "World"

    def __init__(self, world: "World", machine: ControllerHost, config: TopicConfig) -> None:
        super().__init__(world, machine.node_id, config)
        self.machine = machine
        self.process, self.disk = machine.process, machine.disk
        self.is_leaving = False
        self.is_let_go = False

    def open(self) -> None:
        self.forget()
        self.files = self.machine.files
        # The files are still on the disk: their mirror stays until the replica is opened again.
        self.replica = self.local = None
        self.is_leaving = self.is_let_go = False
        self.begin_incarnation()
        self._register()
        self.later(HEARTBEAT_MS, self._heartbeat)
        self.begin_upkeep()

    # Registration -----------------------------------------------------------------------------------------------------

    @property
    def incarnation_id(self) -> bytes:
        return self.incarnation.to_bytes(16, "big")

    def _register(self) -> None:
        if self.is_registered:
            return
        command = RegisterFenced(
            broker_id=self.node_id,
            endpoints=ENDPOINTS,
            incarnation_id=self.incarnation_id,
            previous_broker_epoch=self.kept_broker_epoch,
            rack=self.world.rack(self.node_id),
        )
        self.machine.ask(command, self._on_registration)
        self.later(ASK_MS, self._register)

    def _on_registration(self, registration: Registration) -> None:
        if registration.code is ErrorCode.NONE and registration.epoch > self.broker_epoch:
            self.on_epoch(registration.epoch)
            self.on_image(self.machine.controller.image)

    def _heartbeat(self) -> None:
        self.later(HEARTBEAT_MS, self._heartbeat)
        if self.is_registered:
            offset = self.machine.controller.image.offset
            command = Heartbeat(self.node_id, self.broker_epoch, offset, wants_shut_down=self.is_leaving)
            self.machine.ask(command, self._on_state)

    def _on_state(self, state: BrokerState) -> None:
        if state.code is ErrorCode.STALE_BROKER_EPOCH:
            self.world.states.reach("stale incarnation refused")
        if self.is_leaving and state.may_shut_down:
            self.is_let_go = True

    # The metadata -----------------------------------------------------------------------------------------------------

    def on_image(self, image: Image) -> None:
        """Apply the committed metadata: open, follow, lead or drop the replica."""
        # A broker that does not know yet of its registration would act on older metadata.
        known = image.brokers.get(self.node_id)
        if not self.is_registered or known is None or image.offset < self.broker_epoch:
            return
        if known.epoch != self.broker_epoch:
            # A registration of an earlier incarnation has arrived after ours: the controller would refuse our
            # heartbeats.
            self.is_registered = False
            self._register()
            return
        partition = image.partition(NAME)
        if partition is None:
            return
        if self.node_id not in partition.replicas:
            self._drop()
            return
        if self.replica is None:
            self.open_replica()
        assert self.replica is not None
        epochs = {it.node_id: it.epoch for it in image.brokers.values()}
        self.replica.on_partition(partition, epochs, self.process.now_ms)
        self.fetch()

    def _drop(self) -> None:
        """Drop the replica: waiting clients are refused, and its files are deleted."""
        if self.replica is None:
            return
        self.replica.retire()
        self._settle()
        self.world.states.reach("replica dropped")
        self.world.trace.happened(self.name, NOTE, "drops its replica")
        self.replica = self.local = None
        self.data.delete_log(NAME)
        self.mirror = Mirror()
        self.outbox.clear()

    def send_outbox(self) -> None:
        orders, self.outbox[:] = list(self.outbox), []
        for order in orders:
            it = order.proposal
            change = IsrChange(TOPIC_ID, NAME.partition, it.leader_epoch, it.partition_epoch, it.isr)
            command = alter_moving_partitions(self.node_id, self.broker_epoch, [change])
            self.machine.ask(command, partial(self._on_altered_partition, it))

    def _on_altered_partition(self, proposal: IsrProposal, results: list[AlteredPartition]) -> None:
        (it,) = results
        if it.code is not ErrorCode.NONE:
            self.world.states.reach("proposal refused")
        self.on_altered(proposal, Answered(Altered(it.code, it.isr, it.partition_epoch)))
