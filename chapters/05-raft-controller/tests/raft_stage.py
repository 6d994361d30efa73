"""A stage for directed scenarios of the quorum: a text has the steps, and the result is written below each step.

    > voters 1 2 3               three voters, all up
    > time-out 1                 the election timeout of node 1 passes: it asks for votes, and all live nodes answer
    > time-out 1 to 2            only node 2 gets its messages
    > time-out 1 unanswered      votes are given, but the responses get lost
    > expire 2 3                 their election timeouts pass, and their messages get lost
    > append 1 a b               node 1, the leader, appends a batch
    > fetch 2 / fetch 2 3        these nodes fetch once, each from its target
    > kill 1 / start 1           the process dies; it is restarted on its disk
    > lose-disk 1                the disk of a node that is down is replaced by an empty one
    > fail-disk 1                from now on every flush fails
    > cut 1 / heal 1             the network of node 1 is cut, and works again
    > lose-quorum 1              node 1 has had no fetch of a majority for too long
    > resign 1                   node 1 is shut down cleanly
    > add-voter 1 3 / remove-voter 1 3      node 1, the leader, changes the voter set
    > show                       every node: role, epoch, leader, log

In a log, `1:a` is a record `a` of epoch 1, `*` a control record, and `|` the high watermark.
"""

from collections.abc import Sequence

import simulation_scenario
from raft_nodes import QuorumNode, voters
from replication_nodes import batch_of, contents, shown_log

from minibroker.log.errors import StorageError
from minibroker.raft.leading import NotLeader
from minibroker.raft.messages import BeginQuorumEpoch, EndQuorumEpoch, Send, Vote
from minibroker.raft.node import Raft
from minibroker.raft.roles import Role
from minibroker.raft.voters import Voter
from minibroker.wire.codes import ErrorCode


class Stage(simulation_scenario.Stage):
    """Plays a scenario of the quorum. Nothing is random: every timeout is the shortest."""

    def __init__(self) -> None:
        self.nodes: dict[int, QuorumNode] = {}
        self.up: set[int] = set()
        self.cut: set[int] = set()
        self.now_ms = 0
        self._loses_votes = False

    def _raft(self, word: str | int) -> Raft:
        return self.nodes[int(word)].raft

    def _hears(self, one: int, other: int) -> bool:
        return other in self.up and one in self.up and not {one, other} & self.cut

    # Steps ------------------------------------------------------------------------------------------------------------

    def on_voters(self, *words: str) -> list[str]:
        bootstrap = voters(*map(int, words))
        for node_id in bootstrap:
            self.nodes[node_id] = QuorumNode(node_id, bootstrap, chance=lambda _below: 0)
            self.nodes[node_id].open(self.now_ms)
            self.up.add(node_id)
        return []

    def on_time_out(self, word: str, *options: str) -> list[str]:
        raft = self._raft(word)
        hearers = {int(it) for it in options if it.isdigit()} or set(self.nodes)
        self.now_ms = max(self.now_ms, raft.next_deadline_ms)
        self._loses_votes = "unanswered" in options
        return self._carry(int(word), raft.tick(self.now_ms), hearers)

    def on_expire(self, *words: str) -> list[str]:
        for word in words:
            raft = self._raft(word)
            raft.tick(max(self.now_ms, raft.next_deadline_ms))
        return [self._state(int(word)) for word in words]

    def _carry(self, source: int, sends: Sequence[Send], hearers: set[int]) -> list[str]:
        """Deliver messages and responses until there are none left."""
        lines: list[str] = []
        queue = list(sends)
        while queue:
            node_id, message = queue.pop(0)
            if node_id not in hearers or not self._hears(source, node_id):
                continue
            line, more = self._exchange(source, node_id, message)
            lines.append(line)
            queue += more
        return [*lines, self._state(source)]

    def _exchange(self, source: int, node_id: int, message: object) -> tuple[str, list[Send]]:
        raft, other = self._raft(source), self._raft(node_id)
        if isinstance(message, Vote):
            voted = other.on_vote(message, self.now_ms)
            what = "would you vote for me" if message.is_pre_vote else "vote for me"
            answer = "yes" if voted.is_granted else "no" if voted.code is ErrorCode.NONE else voted.code.name
            log = f"{message.last_epoch}@{message.last_offset}"
            line = f"{source} to {node_id}: {what} in epoch {message.epoch}, I have {log}: {answer}"
            if self._loses_votes and not message.is_pre_vote:
                return f"{line}, which gets lost", []
            return line, raft.on_voted(node_id, message, voted, self.now_ms)
        if isinstance(message, BeginQuorumEpoch):
            heard = other.on_begin(message, self.now_ms)
            line = f"{source} to {node_id}: I lead epoch {message.epoch}: {heard.code.name}"
        else:
            assert isinstance(message, EndQuorumEpoch)
            heard = other.on_end(message, self.now_ms)
            line = f"{source} to {node_id}: I resign from epoch {message.epoch}: {heard.code.name}"
        raft.on_heard(heard, self.now_ms)
        return line, []

    def on_append(self, word: str, *values: str) -> list[str]:
        try:
            offset = self._raft(word).append(batch_of(*(it.encode() for it in values)))
        except (NotLeader, StorageError) as error:
            return [str(error)]
        return [f"appended at {offset}", self._state(int(word))]

    def on_fetch(self, *words: str) -> list[str]:
        lines: list[str] = []
        for node_id in map(int, words):
            raft = self._raft(node_id)
            position, target = raft.position(), raft.target()
            if position is None:
                lines.append(f"{node_id} has no node to fetch from")
                continue
            wanted = f"{position.offset} after {position.last_epoch}, in epoch {position.epoch}"
            asks = f"{node_id} asks {target} for {wanted}"
            if not self._hears(node_id, target):
                raft.on_unanswered()
                lines.append(f"{asks}: no answer")
                continue
            fetched = self._raft(target).on_fetch(position, self.now_ms)
            raft.on_fetched(position, fetched, self.now_ms)
            told = fetched.code.name if fetched.code else "records" if fetched.records else "nothing"
            if fetched.diverging is not None:
                told = f"epoch {fetched.diverging.epoch} ends at {fetched.diverging.end_offset}"
            lines += [f"{asks}: {told}", self._state(node_id)]
        return lines

    def on_kill(self, word: str) -> list[str]:
        self.up.discard(int(word))
        self.nodes[int(word)].files.crash()
        return []

    def on_start(self, word: str) -> list[str]:
        self.nodes[int(word)].open(self.now_ms)
        self.up.add(int(word))
        return [self._state(int(word))]

    def on_lose_disk(self, word: str) -> list[str]:
        self.nodes[int(word)].lose_disk()
        return []

    def on_fail_disk(self, word: str) -> list[str]:
        self.nodes[int(word)].files.fsync_error = OSError(5, "input/output error")
        return []

    def on_cut(self, word: str) -> list[str]:
        self.cut.add(int(word))
        return []

    def on_heal(self, word: str) -> list[str]:
        self.cut.discard(int(word))
        return []

    def on_lose_quorum(self, word: str) -> list[str]:
        raft = self._raft(word)
        self.now_ms += raft.settings.check_quorum_ms + 1
        return self._carry(int(word), raft.tick(self.now_ms), set(self.nodes))

    def on_resign(self, word: str) -> list[str]:
        return self._carry(int(word), self._raft(word).resign(self.now_ms), set(self.nodes))

    def on_add_voter(self, word: str, other: str) -> list[str]:
        voter = Voter(self.nodes[int(other)].key, "127.0.0.1", 9000 + int(other))
        return self._changed(word, self._raft(word).add_voter(voter, timestamp=0))

    def on_remove_voter(self, word: str, other: str) -> list[str]:
        raft = self._raft(word)
        return self._changed(word, raft.remove_voter(raft.voters.key_of(int(other)), timestamp=0))

    def _changed(self, word: str, code: ErrorCode) -> list[str]:
        return [f"{code.name}: the voters are {list(self._raft(word).voters)}", self._state(int(word))]

    def on_show(self) -> list[str]:
        return [self._state(node_id) if node_id in self.up else f"{node_id} down" for node_id in self.nodes]

    def _state(self, node_id: int) -> str:
        raft = self._raft(node_id)
        follows = f" of {raft.leader_id}" if raft.role is Role.FOLLOWER else ""
        voter = "" if raft.is_voter else ", no voter"
        if raft.role is Role.UNATTACHED and raft.voted is not None:
            voter += f", voted for {raft.voted.node_id}"
        log = shown_log(contents(raft), raft.high_watermark)
        return f"{node_id} {raft.role.value}{follows} in epoch {raft.epoch}{voter}  {log}"
