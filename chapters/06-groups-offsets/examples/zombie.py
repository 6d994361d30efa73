"""A worker pauses, another one takes over, and the first one comes back: with a plain table of offsets, and in a group.

python chapters/06-groups-offsets/examples/zombie.py
"""

from itertools import count

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.steps import Client
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker.metadata.configs import NodeConfig

SESSION_MS = 10_000
SETTINGS = GroupSettings.of(NodeConfig({"group.initial.rebalance.delay.ms": "0"}))


class Worker:
    """A member of the group: its id and its generation."""

    def __init__(self, name: str, group: ClassicGroup, now_ms: int) -> None:
        self.name, self._group = name, group
        request = JoinGroupRequest(
            group_id="shop",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        # Version 3 is older than member ids that are given out beforehand, so one request is enough.
        (reply,) = group.on_join("join", request, 3, Client(name, "/127.0.0.1"), now_ms).replies
        assert isinstance(reply.response, JoinGroupResponse)
        self.id, self.generation_id = reply.response.member_id, reply.response.generation_id
        everything = [SyncGroupRequestAssignment(member_id=self.id, assignment=b"0")]
        sync = SyncGroupRequest(
            group_id="shop", generation_id=self.generation_id, member_id=self.id, assignments=everything
        )
        group.on_sync("sync", sync, 3, now_ms)
        print(f"  {name} joins: generation {self.generation_id}")

    def commit(self, offsets: list[int], offset: int, now_ms: int) -> None:
        """Commit an offset, if the group accepts it."""
        try:
            self._group.check_commit(self.id, self.generation_id, None, now_ms)
        except GroupRefused as refused:
            print(f"  {self.name} commits {offset}: {refused.code.name}")
        else:
            offsets.append(offset)
            print(f"  {self.name} commits {offset}: accepted")


def with_a_table() -> None:
    """Everybody may write the offset."""
    print("a plain table of offsets:")
    print("  a reads orders 0 to 3, and pauses")
    print("  b takes over, works up to order 9, and commits 10")
    print("  a wakes up, and commits 4: accepted")
    print("  the next worker begins at 4, and does orders 4 to 9 again")


def with_a_group() -> None:
    """The coordinator knows who may write the offset."""
    print("a group:")
    numbers, offsets = count(1), [0]
    group = ClassicGroup("shop", lambda: SETTINGS, lambda name: f"{name}-{next(numbers)}")
    a = Worker("a", group, now_ms=0)
    print("  a reads orders 0 to 3, and pauses; its session ends after 10 s")
    group.on_time(SESSION_MS)
    b = Worker("b", group, now_ms=SESSION_MS)
    b.commit(offsets, 10, now_ms=SESSION_MS)
    a.commit(offsets, 4, now_ms=SESSION_MS)
    print(f"  the next worker begins at {offsets[-1]}")


if __name__ == "__main__":
    with_a_table()
    with_a_group()
