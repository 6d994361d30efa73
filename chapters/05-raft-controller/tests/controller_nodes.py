"""Nodes with a controller for tests: three voters on disks in memory. A test delivers their messages, with `pump`."""

from collections.abc import Sequence
from typing import Any

from raft_nodes import QuorumNode, voters
from replication_nodes import ENDPOINTS

from minibroker.controller.deciding import Controller
from minibroker.controller.lifecycle import BrokerState, Heartbeat, RegisterFenced
from minibroker.metadata.authority import Proposal
from minibroker.metadata.broker_commands import Registration
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command, decide
from minibroker.metadata.image import Image, PartitionImage, fold_all
from minibroker.metadata.records import FeatureLevelRecord, MetadataRecord
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.raft.messages import BeginQuorumEpoch, Vote
from minibroker.replication.eligible import ELIGIBLE_LEADER_REPLICAS_VERSION, changes_of_min_isr
from minibroker.segments.checkpoint import TopicPartition


class Trio:
    """Three voters, of which node 1 leads unless another one is elected."""

    def __init__(self, *node_ids: int) -> None:
        bootstrap = voters(*(node_ids or (1, 2, 3)))
        self.nodes = {it: QuorumNode(it, bootstrap, chance=lambda _below: 0) for it in bootstrap}
        self.done: list[Proposal[Any]] = []
        self.controllers: dict[int, Controller] = {}
        self.now_ms = 0
        for node_id, node in self.nodes.items():
            raft = node.open(0)
            self.controllers[node_id] = Controller(raft, Image(), clock=lambda: 7, done=self.done.append)

    def elect(self, node_id: int) -> Controller:
        """Let a node stand for election and all other followers vote for it; the present leader is not told."""
        chosen = self.nodes[node_id].raft
        for it in self.nodes.values():
            if not it.raft.is_leader:
                self.now_ms = max(self.now_ms, it.raft.next_deadline_ms)
        for it in self.nodes.values():
            if it.raft is not chosen and not it.raft.is_leader:
                it.raft.tick(self.now_ms)
        sends = chosen.tick(self.now_ms)
        while sends:
            other, message = sends.pop(0)
            if isinstance(message, Vote):
                if self.nodes[other].raft.is_leader:
                    continue
                sends += chosen.on_voted(
                    other, message, self.nodes[other].raft.on_vote(message, self.now_ms), self.now_ms
                )
            elif not self.nodes[other].raft.is_leader:
                assert isinstance(message, BeginQuorumEpoch)
                self.nodes[other].raft.on_begin(message, self.now_ms)
        self.catch_up()
        return self.controllers[node_id]

    def fetch(self, *node_ids: int) -> None:
        """Let these nodes fetch once from their leader."""
        for node_id in node_ids:
            raft = self.nodes[node_id].raft
            position = raft.position()
            if position is not None:
                answer = self.nodes[raft.target()].raft.on_fetch(position, self.now_ms)
                raft.on_fetched(position, answer, self.now_ms)
        self.catch_up()

    def pump(self) -> None:
        """Let all nodes fetch until all know the high watermark."""
        for _ in range(4):
            self.fetch(*self.nodes)

    def catch_up(self) -> None:
        for controller in self.controllers.values():
            controller.catch_up()


# Commands against an image --------------------------------------------------------------------------------------------

ORDERS = TopicPartition("orders", 0)
ORDERS_ID = b"orders".rjust(16, b"\0")


class Metadata:
    """An image that commands change: every record is committed at once."""

    def __init__(self, *brokers: int) -> None:
        self.image = Image()
        self.epochs: dict[int, int] = {}
        for broker_id in brokers:
            self.register(broker_id)
            self.heartbeat(broker_id)

    def do(self, command: Command[Any]) -> Any:
        decision = decide(self.image, command)
        self.write([*decision.records, *changes_of_min_isr(self.image, decision.records)])
        return decision.result

    def write(self, records: Sequence[MetadataRecord]) -> None:
        self.image = fold_all(self.image, enumerate(records, start=self.image.offset + 1))

    def keep_eligible(self) -> None:
        """Turn on eligible leader replicas (KIP-966)."""
        self.write([FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=1)])

    def register(self, broker_id: int, *, incarnation: int = 0, previous: int = -1, log_dirs: str = "") -> int:
        registration = self.try_to_register(broker_id, incarnation=incarnation, previous=previous, log_dirs=log_dirs)
        self.epochs[broker_id] = registration.epoch
        return registration.epoch

    def try_to_register(
        self, broker_id: int, *, incarnation: int, previous: int = -1, log_dirs: str = "", is_heard: bool = False
    ) -> Registration:
        """Each letter of `log_dirs` is a directory."""
        command = RegisterFenced(
            broker_id=broker_id,
            endpoints=ENDPOINTS,
            incarnation_id=bytes([broker_id, incarnation]).rjust(16, b"\1"),
            previous_broker_epoch=previous,
            log_dirs=[it.encode() * 16 for it in log_dirs],
            is_registered_one_alive=is_heard,
        )
        registration: Registration = self.do(command)
        return registration

    def heartbeat(self, broker_id: int, **wants: bool) -> BrokerState:
        state: BrokerState = self.do(Heartbeat(broker_id, self.epochs[broker_id], self.image.offset, **wants))
        return state

    def create(self, *assignments: list[int]) -> None:
        """Create partitions of one topic, or one topic for each if their numbers of replicas differ."""
        if len({len(it) for it in assignments}) > 1:
            for number, replicas in enumerate(assignments):
                self._create(f"orders{number or ''}", [(0, replicas)])
        else:
            self._create("orders", list(enumerate(assignments)))

    def _create(self, name: str, assignments: list[tuple[int, list[int]]]) -> None:
        topic = NewTopic(name, name.encode().rjust(16, b"\0"), assignments=assignments)
        (created,) = self.do(CreateTopics([topic], NodeConfig()))
        assert created.code == 0, created.message

    def partition(self, number: int = 0) -> PartitionImage:
        found = self.image.partition(TopicPartition("orders", number)) or self.image.partition(
            TopicPartition(f"orders{number}", 0)
        )
        assert found is not None
        return found
