"""Restart the members of a classic group one after the other, in memory, and count what it costs.

python chapters/06-groups-offsets/examples/rolling_restart.py

The members are eager: each stops reading when it joins again. A member finishes its work before it joins again, which
takes one of them up to five seconds. Every twenty seconds, one member is restarted, and away for two seconds.
"""

from itertools import count

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.keys import GroupSettings
from minibroker.groups.steps import Client, Step
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from minibroker.groups.tables.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker.metadata.configs import NodeConfig
from minibroker.wire.codes import ErrorCode

MEMBERS = 10
SESSION_MS, REBALANCE_MS, HEARTBEAT_MS = 45_000, 300_000, 3_000
WORK_MS, SLOW_WORK_MS = 500, 5_000
RESTART_MS, AWAY_MS, TICK_MS = 20_000, 2_000, 100
SETTINGS = GroupSettings.of(NodeConfig())


class Simulated:
    """One member, as a client library behaves."""

    def __init__(self, cluster: "Cluster", instance_id: str | None, work_ms: int) -> None:
        self.cluster, self.instance_id, self.work_ms = cluster, instance_id, work_ms
        self.member_id, self.generation_id = "", -1
        self.is_up, self.reads, self.must_join, self.next_heartbeat_ms = True, False, False, 0

    def join(self) -> None:
        """Stop reading, and join."""
        self.reads = self.must_join = False
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        self.cluster.take(self.cluster.group.on_join(self, request, 9, Client("c", "/h"), self.cluster.now_ms))

    def answered(self, response: object) -> None:
        """An answer has come: go on with the next request."""
        if not self.is_up:
            return
        if not isinstance(response, JoinGroupResponse):
            self.reads = not isinstance(response, ErrorCode)
            self.next_heartbeat_ms = self.cluster.now_ms + HEARTBEAT_MS
            return
        self.member_id, self.generation_id = response.member_id, response.generation_id
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.join()
            return
        parts = [SyncGroupRequestAssignment(member_id=it.member_id, assignment=b"0") for it in response.members]
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=[] if response.skip_assignment else parts,
        )
        self.cluster.take(self.cluster.group.on_sync(self, request, 5, self.cluster.now_ms))

    def tick(self) -> None:
        """Send a heartbeat if it is time. If the answer says so, join again when the work is done."""
        now_ms = self.cluster.now_ms
        if self.must_join and now_ms % self.work_ms == 0:
            self.join()
        if not self.reads or now_ms < self.next_heartbeat_ms:
            return
        self.next_heartbeat_ms = now_ms + HEARTBEAT_MS
        request = HeartbeatRequest(
            group_id="g",
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        self.must_join = self.cluster.group.on_heartbeat(request, now_ms) is ErrorCode.REBALANCE_IN_PROGRESS

    def stop(self) -> None:
        """Stop. A dynamic member leaves; a static one does not say anything."""
        self.is_up = self.reads = self.must_join = False
        if self.instance_id is None:
            leaving = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=self.member_id)])
            self.cluster.take(self.cluster.group.on_leave(self, leaving, 5, self.cluster.now_ms))
        self.member_id = ""

    def start(self) -> None:
        """Start again."""
        self.is_up = True
        self.join()


class Cluster:
    """The group, its members, and the clock."""

    def __init__(self, *, are_static: bool) -> None:
        numbers = count(1)
        self.now_ms = 0
        self.group = ClassicGroup("g", lambda: SETTINGS, lambda name: f"{name}-{next(numbers)}")
        works_ms = [SLOW_WORK_MS] + [WORK_MS] * (MEMBERS - 1)
        self.members = [
            Simulated(self, f"m{number}" if are_static else None, work_ms) for number, work_ms in enumerate(works_ms)
        ]
        self.waited_ms = 0

    def take(self, step: Step) -> None:
        """Deliver the answers of a step."""
        for member, response in step.replies:
            assert isinstance(member, Simulated)
            member.answered(response)

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        for _tick in range(duration_ms // TICK_MS):
            self.now_ms += TICK_MS
            self.take(self.group.on_time(self.now_ms))
            for member in self.members:
                member.tick()
            self.waited_ms += TICK_MS * sum(it.is_up and not it.reads for it in self.members)

    def restart_all(self) -> tuple[int, float]:
        """Restart every member in turn: the rebalances, and the seconds for which members waited."""
        for member in self.members:
            member.start()
        self.run(RESTART_MS)
        generation, self.waited_ms = self.group.generation_id, 0
        for member in self.members:
            member.stop()
            self.run(AWAY_MS)
            member.start()
            self.run(RESTART_MS - AWAY_MS)
        return self.group.generation_id - generation, self.waited_ms / 1000


if __name__ == "__main__":
    for kind, are_static in (("dynamic", False), ("static", True)):
        rebalances, waited_s = Cluster(are_static=are_static).restart_all()
        print(f"{kind:<8} {rebalances:>2} rebalances; the members wait {waited_s:.0f} s in all")
