"""A stage for directed scenarios: a text says what happens, step by step, and what was seen is written below each step.

    > nodes 1 2 3 min.insync.replicas=2     three nodes; the first one leads
    > produce a b                           one batch, acks=all, to whom the authority names as leader
    > produce a at 1 acks=1                 to node 1, even if it does not lead
    > produce a as 7:0                      with producer id 7, sequence 0
    > fetch 2                               node 2 fetches once from the leader it believes in
    > fetch 2 held                          the answer stays under way, until:
    > deliver 2                             the held answer arrives
    > alter 1                               what node 1 wants of the authority is sent, answered and heard
    > alter 1 unanswered                    the answer is lost
    > elect 2                               the authority makes node 2 the leader (it must be in sync)
    > elect 2 unclean                       whether it is in sync or not
    > tell 2                                node 2 hears what the authority has decided; `tell` tells all who are up
    > kill 2 / cut-power 2 / start 2        the process dies; the machine loses power; it starts, and registers
    > tick 31000                            time passes, for all
    > delete 1 3                            records before offset 3 are deleted at node 1
    > consume 1 / consume 1 from 2          what a consumer may read at node 1
    > acks                                  what became of each batch that was produced
    > show                                  every node: role, epoch, in-sync set, watermark, log
    > epochs 2                              the epochs of node 2's log

Lines that begin with # are for the reader. In a log, `1:a` is a record `a` of epoch 1, and `|` is the high watermark.
"""

from dataclasses import dataclass

import simulation_scenario
from replication_nodes import (
    NAME,
    AuthorityNode,
    ReplicaNode,
    answer_fetch,
    batch_of,
    contents,
    named,
    shown,
    shown_log,
)

from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, Appended
from minibroker.replication.authority import Election, ElectLeaders
from minibroker.replication.follower import Fetched
from minibroker.replication.leader import Altered
from minibroker.replication.replica import Replica
from minibroker.wire.codes import ErrorCode


@dataclass
class _Produced:
    values: str
    node_id: int
    replica: Replica
    appended: Appended
    acks: int
    said: str = ""
    """The producer's answer, once it has one."""


class Stage(simulation_scenario.Stage):
    """Plays a scenario of one partition."""

    def __init__(self) -> None:
        self.authority = AuthorityNode()
        self.nodes: dict[int, ReplicaNode] = {}
        self.up: set[int] = set()
        self.now_ms = 0
        self.produced: list[_Produced] = []
        self.held: dict[int, Fetched] = {}

    # Steps ------------------------------------------------------------------------------------------------------------

    def on_nodes(self, *words: str) -> list[str]:
        node_ids = [int(word) for word in words if word.isdigit()]
        configs = dict(word.split("=") for word in words if "=" in word)
        for node_id in node_ids:
            self.nodes[node_id] = ReplicaNode(node_id, TopicConfig(configs))
            self.nodes[node_id].broker_epoch = self.authority.register(node_id)
            self.up.add(node_id)
        self.authority.create(node_ids, **{key: value for key, value in named(configs).items() if value is not None})
        return self.on_tell()

    def on_tell(self, *node_ids: str) -> list[str]:
        for node_id in map(int, node_ids) if node_ids else sorted(self.up):
            partition, broker_epochs = self.authority.news
            self.nodes[node_id].replica.on_partition(partition, broker_epochs, self.now_ms)
        return []

    def on_produce(self, *words: str) -> list[str]:
        options = {"at": str(self.authority.partition.leader), "acks": "all", "as": ""}
        values: list[str] = []
        rest = iter(words)
        for word in rest:
            if word in ("at", "as"):
                options[word] = next(rest)
            elif word.startswith("acks="):
                options["acks"] = word.removeprefix("acks=")
            else:
                values.append(word)
        return self._produce(values, **options)

    def _produce(self, values: list[str], **options: str) -> list[str]:
        producer_id, _colon, sequence = options["as"].partition(":")
        batch = batch_of(
            *(value.encode() for value in values), producer_id=int(producer_id or -1), sequence=int(sequence or -1)
        )
        node_id, acks = int(options["at"]), ACKS_ALL if options["acks"] == "all" else int(options["acks"])
        replica = self.nodes[node_id].replica
        end = replica.log.log_end_offset
        try:
            appended = self.nodes[node_id].local.append(memoryview(batch), acks=acks, now_ms=self.now_ms)
        except Refused as refused:
            return [f"refused: {refused.code.name}: {refused.message}"]
        self.produced.append(_Produced(" ".join(values), node_id, replica, appended, acks))
        what = "appended at" if replica.log.log_end_offset > end else "was there already, at"
        return [f"{what} {appended.base_offset}: {self._verdict(self.produced[-1])}"]

    def after_step(self) -> None:
        """Answer all waiting producers that can be answered now, as a broker does after each event."""
        for it in self.produced:
            is_there = it.node_id in self.up and self.nodes[it.node_id].replica is it.replica
            verdict = it.replica.verdict(it.appended, acks=it.acks) if is_there and not it.said else None
            if verdict is not None:
                it.said = "acked" if verdict is ErrorCode.NONE else verdict.name
            elif not is_there:
                it.said = it.said or "never answered"

    def _verdict(self, it: _Produced) -> str:
        self.after_step()
        return it.said or "waits"

    def on_acks(self) -> list[str]:
        return [f"{it.values} at {it.appended.base_offset}: {self._verdict(it)}" for it in self.produced]

    def on_fetch(self, word: str, *options: str) -> list[str]:
        node = self.nodes[int(word)]
        position = node.replica.position()
        if position is None:
            return ["has no leader to fetch from"]
        asks = f"asks {position.leader} for {position.fetch_offset}, its last epoch is {position.last_fetched_epoch}"
        if position.leader not in self.up:
            return [asks, "no answer"]
        leader = self.nodes[position.leader].local
        if position.is_lost:
            node.replica.on_start(position, leader.log_start_offset)
            return [f"asks {position.leader} where its log starts: {leader.log_start_offset}", self._log(node)]
        fetched = answer_fetch(
            leader, position, replica_id=node.node_id, replica_epoch=node.broker_epoch, now_ms=self.now_ms
        )
        if "held" in options:
            self.held[node.node_id] = fetched
            return [asks, f"{_told(fetched)}, still under way"]
        return [asks, *self._arrive(node, fetched)]

    def on_deliver(self, word: str) -> list[str]:
        return self._arrive(self.nodes[int(word)], self.held.pop(int(word)))

    def _arrive(self, node: ReplicaNode, fetched: Fetched) -> list[str]:
        before = contents(node.replica)
        node.replica.on_fetched(fetched)
        lost = [it for it in before if it not in contents(node.replica)]
        cut = [f"cuts off {shown(lost)}"] if lost else []
        return [_told(fetched), *cut, self._log(node)]

    def on_alter(self, word: str, *options: str) -> list[str]:
        node = self.nodes[int(word)]
        orders, node.outbox[:] = list(node.outbox), []
        lines = []
        for order in orders:
            altered = self.authority.alter(node.node_id, node.broker_epoch, order.proposal)
            lines.append(f"proposes {list(order.proposal.members)}: {_answered(altered)}")
            if "unanswered" not in options:
                node.replica.on_altered(order.proposal, altered)
        return lines or ["proposes nothing"]

    def on_elect(self, word: str, *options: str) -> list[str]:
        kind = Election.UNCLEAN if "unclean" in options else Election.PREFERRED
        command = ElectLeaders([NAME], live=[int(word)], node=NodeConfig(), kind=kind)
        (elected,) = self.authority.voter.propose(command).result
        if elected.code:
            return [f"refused: {elected.code.name}: {elected.message}"]
        return [self._partition()]

    def _partition(self) -> str:
        it = self.authority.partition
        who = (
            f"leader {it.leader} in epoch {it.leader_epoch}"
            if it.leader >= 0
            else f"no leader, epoch {it.leader_epoch}"
        )
        return f"{who}, in sync {list(it.isr)}, partition epoch {it.partition_epoch}"

    def on_kill(self, word: str) -> list[str]:
        self.up.discard(int(word))
        self.nodes[int(word)].files.crashes += 1
        return []

    def on_cut_power(self, word: str) -> list[str]:
        self.up.discard(int(word))
        self.nodes[int(word)].files.crash()
        self.nodes[int(word)].broker_epoch = -1
        return []

    def on_start(self, word: str) -> list[str]:
        node = self.nodes[int(word)]
        node.open()
        node.broker_epoch = self.authority.register(node.node_id, previous_broker_epoch=node.broker_epoch)
        self.up.add(node.node_id)
        return [self._partition(), self._log(node)]

    def on_tick(self, word: str) -> list[str]:
        self.now_ms += int(word)
        for node_id in sorted(self.up):
            self.nodes[node_id].replica.tick(self.now_ms)
        return []

    def on_delete(self, word: str, offset: str) -> list[str]:
        start = self.nodes[int(word)].local.delete_records(int(offset))
        return [f"the log starts with {start}"]

    def on_consume(self, word: str, *options: str) -> list[str]:
        replica = self.nodes[int(word)].replica
        try:
            self.nodes[int(word)].local.check_leader()
        except Refused as refused:
            return [f"refused: {refused.code.name}"]
        first = int(options[1]) if options else replica.log.log_start_offset
        read = [it for it in contents(replica, replica.high_watermark) if it[0] >= first]
        return [shown(read) or "nothing"]

    def on_show(self) -> list[str]:
        return [f"authority: {self._partition()}"] + [self._shown(node) for node in self.nodes.values()]

    def _shown(self, node: ReplicaNode) -> str:
        if node.node_id not in self.up:
            return f"{node.node_id} down"
        it = node.replica
        role = "follows no leader"
        if it.leading is not None:
            pending = it.leading.pending
            proposed = f" or {list(pending.members)}" if pending is not None else ""
            role = f"leads in epoch {it.leader_epoch}, in sync {list(it.leading.isr)}{proposed}"
        elif it.following is not None:
            role = f"follows {it.following.leader} in epoch {it.leader_epoch}"
        return f"{self._log(node)}  {role}"

    def on_epochs(self, word: str) -> list[str]:
        entries = self.nodes[int(word)].replica.epochs.entries
        return [" ".join(f"{it.epoch} from {it.start_offset}" for it in entries) or "none"]

    def _log(self, node: ReplicaNode) -> str:
        replica = node.replica
        start = f"{replica.log.log_start_offset}: " if replica.log.log_start_offset else ""
        return f"{node.node_id} has {shown_log(contents(replica), replica.high_watermark, start)}"


def _told(fetched: Fetched) -> str:
    if fetched.code is not ErrorCode.NONE:
        return f"told {fetched.code.name}"
    if fetched.diverging is not None:
        return f"told that epoch {fetched.diverging.epoch} ends at {fetched.diverging.end_offset}"
    return f"told {len(fetched.records) and 'records'}, high watermark {fetched.high_watermark}".replace(
        "told 0", "told nothing"
    )


def _answered(altered: Altered) -> str:
    if altered.code is not ErrorCode.NONE:
        return altered.code.name
    return f"in sync {list(altered.isr)}, partition epoch {altered.partition_epoch}"
