"""The world of one replicated partition: all claims of this chapter, under all kinds of faults.

    python -m minibroker.simulation replication_world --path chapters/04-replication-isr/tests --seeds 1000

Every node runs the code of the broker: chapter 02's log on a simulated disk, chapter 03's producer states and metadata
log, this chapter's replica and authority. Simulated are the clock, the network, the disks, and the clients.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from random import Random
from typing import ClassVar

from partition_watch import (
    CODES,
    LEADER_CHANGES,
    NO_ENDS,
    PARTITION_DISASTER_STATES,
    PARTITION_DISASTERS,
    REPLICA_STATES,
    PartitionWatch,
)
from replication_clients import Consumer, Producer
from replication_cluster import Authority, Member, Node
from replication_messages import Propose, Register

from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import Election
from minibroker.replication.leader import IsrProposal
from minibroker.simulation import cluster
from minibroker.simulation.faults import Fault, Kind
from minibroker.simulation.host import DEATH, Host
from minibroker.simulation.scheduler import Action
from minibroker.simulation.trace import NOTE


class World(PartitionWatch):
    """Mostly three nodes, sometimes two or five; a controller; producers and consumers."""

    STORM_MS = 25_000
    STATES: ClassVar[tuple[str, ...]] = (
        *REPLICA_STATES,
        "watermark moved while an ISR change was pending",
        *CODES.values(),
        "duplicate answered",
        "producer gave up",
        *LEADER_CHANGES,
        "producers restored from a snapshot",
        "log start moved",
        "log start moved on a follower",
        "consumer reset to the log's start",
        "segment rolled",
        "unclean registration",
        "stale incarnation refused",
        DEATH,
        "offline, the most complete one elected",
        *PARTITION_DISASTER_STATES,
    )
    KINDS: ClassVar[tuple[Kind, ...]] = (
        cluster.KILL,
        cluster.POWER_CUT,
        cluster.die_in_mid_write(changes_max=12, weight=2),
        cluster.RESTART,
        Kind("reincarnation", cluster.any_node, (300, 2500)),
        cluster.PAUSE,
        cluster.CUT,
        cluster.ISOLATE._replace(weight=1),
        Kind("deaf leader", cluster.any_node, (1000, 4000)),
        Kind("last replica standing", cluster.any_node, (100, 1500)),
        cluster.SLOW,
        Kind("elect", cluster.any_node, weight=4),
        Kind(
            "clock",
            lambda chance: (*cluster.any_node(chance), chance.choice((-60_000, -3_000, 3_000, 60_000))),
            (500, 8000),
        ),
        Kind("break client links", cluster.any_node, weight=2),
        Kind("stop the authority", lambda chance: (chance.randrange(2),), (50, 1500)),
        Kind("delete records", cluster.any_node, weight=1),
    )
    DISASTERS: ClassVar[tuple[Kind, ...]] = PARTITION_DISASTERS
    TRIALS: ClassVar[tuple[Kind, ...]] = (cluster.COMEBACK,)

    # Setting up -------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """All nodes are up, and the first one leads."""
        chance = self.chance("build")
        size = chance.choice((3, 3, 3, 3, 3, 3, 3, 5, 5, 2))
        min_isr = 2 if size < 5 else chance.choice((2, 3))
        self.lag_ms_max = chance.choice((800, 1500, 3000))
        self.reaction_ms = chance.choice((200, 600, 1500))
        self.fetch_bytes = chance.choice(((1 << 20,), (1 << 20, 100), (100, 300, 2000)))
        self.watch_partition(
            TopicConfig(
                {
                    "min.insync.replicas": str(min_isr),
                    "internal.segment.bytes": chance.choice(("1500", "4000", "20000")),
                    "index.interval.bytes": "200",
                    "retention.bytes": chance.choice(("-1", "-1", "6000")),
                }
            )
        )
        self.incarnations = count(size + 1)
        self.authority = Authority(self)
        self.members = {number: Member(self, number, self.config) for number in range(1, size + 1)}
        self.nodes = dict(self.members)
        for node_id, node in self.nodes.items():
            node.kept_broker_epoch = self.authority.register(node_id)
        self.authority.create(list(self.nodes), **{"min.insync.replicas": str(min_isr)})
        for node in self.nodes.values():
            node.start()
        self._add_clients(chance)
        self.scheduler.after(self.reaction_ms, self._operate)

    def _add_clients(self, chance: Random) -> None:
        self.producers = [Producer(self, f"p{number}", acks=ACKS_ALL, is_idempotent=True) for number in (1, 2)]
        if chance.random() < 0.5:
            self.producers.append(Producer(self, "weak", acks=1, is_idempotent=False))
        if chance.random() < 0.3:
            self.producers.append(Producer(self, "plain", acks=ACKS_ALL, is_idempotent=False))
        self.consumers = [Consumer(self, f"c{number}") for number in (1, 2)]

    def hosts(self) -> Mapping[int, Node]:
        return self.nodes

    def parties(self) -> list[str]:
        return [*super().parties(), "authority"]

    # What is decided --------------------------------------------------------------------------------------------------

    @property
    def partition(self) -> PartitionImage:
        return self.authority.partition

    def live(self) -> list[int]:
        return self.authority.live()

    def elect(self, live: list[int], kind: Election = Election.PREFERRED, ends: LogEnds = NO_ENDS) -> None:
        self.authority.process.run(partial(self.authority.elect, live, kind, ends))

    def leader(self) -> Node | None:
        """The leader that the controller has elected."""
        return self.nodes.get(self.partition.leader)

    # Faults -----------------------------------------------------------------------------------------------------------

    def on_deaf_leader(self, fault: Fault) -> None:
        """A follower leaves the in-sync set; when it returns, the answer to the leader's proposal is lost (KIP-497)."""
        host, leader = self.host_hit(fault), self.leader()
        if leader is None or leader is host:
            return

        def deafen() -> None:
            host.process.resume()
            self.scheduler.after(fault.duration_ms, self.network.cut("authority", leader.name))

        host.process.pause()
        self.scheduler.after(self.lag_ms_max + 800, deafen)

    def on_last_replica_standing(self, fault: Fault) -> None:
        """All nodes but the leader die, the leader is soon the only one in sync, and loses power (KIP-966)."""
        leader = self.leader()
        if leader is None:
            return

        def fall() -> None:
            if self.may_cut_power(leader):
                leader.cut_power()
            for node in self.nodes.values():
                self.scheduler.after(fault.duration_ms, node.start)

        for node in self.nodes.values():
            if node is not leader:
                node.kill()
        self.scheduler.after(self.lag_ms_max + 1000, fall)

    def on_clock(self, fault: Fault) -> Action:
        """A node's clock is wrong for a while."""
        process, error_ms = self.host_hit(fault).process, int(fault.arguments[1])
        process.clock_error_ms += error_ms

        def end() -> None:
            process.clock_error_ms -= error_ms

        return end

    def on_stop_the_authority(self, fault: Fault) -> Action | None:
        """The controller is down for a while."""
        if not self.authority.process.is_alive:
            return None
        self.authority.stop(is_power_cut=bool(fault.arguments[0]))
        return self.authority.start

    def on_delete_records(self, fault: Fault) -> None:
        """A client deletes the oldest records."""
        node = self.leader()
        if node is not None:
            node.process.run(partial(self._delete, node, int(fault.arguments[0])))

    def _delete(self, node: Node, number: int) -> None:
        replica, local = node.replica, node.local
        assert replica is not None
        assert local is not None
        if replica.leading is not None:
            span = replica.high_watermark - replica.log.log_start_offset
            try:
                local.delete_records(replica.log.log_start_offset + number % (span + 1))
            except Refused as refused:
                self.trace.happened(node.name, NOTE, refused.message)

    def forgeries(self) -> list[Callable[[int], None]]:
        return [*super().forgeries(), self._forge_registration, self._forge_proposal]

    def _forge_registration(self, number: int) -> None:
        """Register in the name of a node that has lost its records."""
        request = Register(1 + number % len(self.nodes), next(self.incarnations), -1)
        self.forge(self.authority.process, request, partial(self.authority.on_register, request, -1))

    def _forge_proposal(self, number: int) -> None:
        """Propose, in the name of the leader, that another node is in sync, or that only the leader is."""
        it = self.partition
        members = sorted({it.leader, 1 + number % len(self.nodes)})
        proposal = IsrProposal(it.leader_epoch, it.partition_epoch, tuple((node_id, -1) for node_id in members))
        request = Propose(it.leader, -1, proposal)
        self.forge(self.authority.process, request, partial(self.authority.on_propose, request))

    def may_stay_away(self, _host: Host) -> bool:
        """This chapter's controller knows no eligible replicas, so the last replica in sync must return."""
        return False

    # The operator -----------------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        """An operator looks after the cluster: if the leader does not answer, another one is elected."""
        self.scheduler.after(self.reaction_ms, self._operate)
        if not self.authority.process.is_alive:
            return
        live = self.answering()
        if not self.partition.isr:
            if len(live) == len(self.nodes):
                self.elect_most_complete(self.nodes)
        elif self.partition.leader not in live and live:
            self.elect(live)
        for node in self.nodes.values():
            if node.mirror.rolls:
                node.mirror.rolls = 0
                self.states.reach("segment rolled")

    def answering(self) -> list[int]:
        """The live nodes that answer the operator."""
        return [it for it in self.live() if not self.nodes[it].process.is_paused]

    def heal(self) -> None:
        self.authority.start()
        super().heal()
