"""The requests of groups on a bare socket, built by hand, and readers of the answers: for what no stock client sends.

The classic requests are in versions without compact fields. `heartbeat_848` is flexible, as it always is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from brokers import Broker, eventually
from clients_raw import NO_TAGS, Connection, Cursor, array, data32, header, i8, i32, i64, string, uvarint

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 9, 10, 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE, CONSUMER_GROUP_HEARTBEAT = 15, 16, 42, 47, 68

NONE, UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE = 0, -1, 3, 12
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, ILLEGAL_GENERATION = 14, 15, 16, 22
INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, INVALID_SESSION_TIMEOUT = 23, 24, 25, 26
REBALANCE_IN_PROGRESS, INVALID_REQUEST, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED = 27, 42, 68, 69, 79
GROUP_SUBSCRIBED_TO_TOPIC, INVALID_REGULAR_EXPRESSION = 86, 128

Text = str | bytes


@dataclass
class Joined:
    """An answer to JoinGroup."""

    code: int
    generation: int
    protocol: str | None
    leader: str | None
    member_id: str
    members: dict[str, bytes] = field(default_factory=dict)


def join(
    group: Text,
    member_id: Text = "",
    *,
    protocol_type: str = "consumer",
    protocols: Sequence[tuple[str, bytes]] = (("range", b""),),
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
    instance_id: str | None = None,
    version: int = 5,
) -> bytes:
    listed = array(string(name) + data32(metadata) for name, metadata in protocols)
    instance = string(instance_id) if version >= 5 else b""
    body = string(group) + i32(session_ms) + i32(rebalance_ms) + string(member_id) + instance + string(protocol_type)
    return header(JOIN_GROUP, version) + body + listed


def sync(group: Text, generation: int, member_id: Text, assignments: Iterable[tuple[Text, bytes]] = ()) -> bytes:
    listed = array(string(name) + data32(assignment) for name, assignment in assignments)
    return header(SYNC_GROUP, 3) + string(group) + i32(generation) + string(member_id) + string(None) + listed


def heartbeat(group: Text, generation: int, member_id: Text) -> bytes:
    return header(HEARTBEAT, 3) + string(group) + i32(generation) + string(member_id) + string(None)


def leave(group: Text, member_id: Text) -> bytes:
    return header(LEAVE_GROUP, 1) + string(group) + string(member_id)


def commit(
    group: Text,
    topic: Text,
    offsets: Iterable[tuple[int, int]],
    *,
    metadata: Text | None = "",
    generation: int = -1,
    member_id: Text = "",
) -> bytes:
    partitions = array(i32(partition) + i64(offset) + i32(-1) + string(metadata) for partition, offset in offsets)
    body = string(group) + i32(generation) + string(member_id) + string(None)
    return header(OFFSET_COMMIT, 7) + body + array([string(topic) + partitions])


def fetch_offsets(group: Text, topic: Text, partitions: Iterable[int]) -> bytes:
    return header(OFFSET_FETCH, 5) + string(group) + array([string(topic) + array(map(i32, partitions))])


def delete_offsets(group: Text, topic: Text, partitions: Iterable[int]) -> bytes:
    return header(OFFSET_DELETE, 0) + string(group) + array([string(topic) + array(map(i32, partitions))])


def compact(text: Text | None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return uvarint(0) if data is None else uvarint(len(data) + 1) + data


def heartbeat_848(
    group: Text,
    member_id: Text,
    epoch: int = 0,
    *,
    topics: Sequence[Text] | None = (),
    regex: Text | None = None,
    owned: int | None = 0,
) -> bytes:
    """ConsumerGroupHeartbeat; `owned` is the number of owned topics that it lies about."""
    names = uvarint(0) if topics is None else uvarint(len(topics) + 1) + b"".join(map(compact, topics))
    held = uvarint(0) if owned is None else uvarint(owned + 1)
    body = compact(group) + compact(member_id) + i32(epoch) + compact(None) + compact(None) + i32(10_000)
    return (
        header(CONSUMER_GROUP_HEARTBEAT, 1) + NO_TAGS + body + names + compact(regex) + compact(None) + held + NO_TAGS
    )


class GroupConnection(Connection):
    """A socket to the coordinator of all groups: the only node."""

    def __init__(self, broker: Broker, *, is_ready: bool = True) -> None:
        """With `is_ready`, it waits for the coordinator."""
        super().__init__(broker)
        if is_ready:
            self.find("any")

    def __enter__(self) -> "GroupConnection":
        return self

    def find(self, group: Text) -> None:
        """Ask until there is a coordinator; the first request creates `__consumer_offsets`."""

        def is_there() -> bool:
            answer = self.ask(header(FIND_COORDINATOR, 2) + string(group) + i8(0))
            answer.skip(4)
            return bool(answer.take("h") == NONE)

        eventually(is_there, "there is a coordinator", seconds=30)
        eventually(lambda: self.code(heartbeat(group, 1, "x")) == UNKNOWN_MEMBER_ID, "it is loaded", seconds=30)

    def code(self, frame: bytes) -> int:
        """The code of an answer to SyncGroup, Heartbeat or LeaveGroup."""
        answer = self.ask(frame)
        answer.skip(4)
        return int(answer.take("h"))

    def code_848(self, frame: bytes) -> int:
        """The code of an answer to ConsumerGroupHeartbeat."""
        answer = self.ask(frame)
        answer.skip(1 + 4)
        return int(answer.take("h"))

    def join(self, frame: bytes) -> Joined:
        self.send(frame)
        return self.receive_joined()

    def receive_joined(self, version: int = 5) -> Joined:
        data = self.receive()
        assert data is not None, "the broker hung up instead of answering"
        answer = Cursor(data)
        answer.skip(4)
        code, generation = answer.take("h"), answer.take("i")
        joined = Joined(code, generation, answer.string(), answer.string(), answer.string() or "")
        for _ in range(answer.take("i")):
            name = answer.string() or ""
            if version >= 5:
                answer.string()
            joined.members[name] = _bytes(answer)
        return joined

    def become_member(self, group: Text, **settings: object) -> Joined:
        """Join with the id that the first request is given."""
        first = self.join(join(group, **settings))  # type: ignore[arg-type]
        assert first.code == MEMBER_ID_REQUIRED
        return self.join(join(group, first.member_id, **settings))  # type: ignore[arg-type]

    def sync(self, frame: bytes) -> tuple[int, bytes]:
        self.send(frame)
        return self.receive_synced()

    def receive_synced(self) -> tuple[int, bytes]:
        data = self.receive()
        assert data is not None, "the broker hung up instead of answering"
        answer = Cursor(data)
        answer.skip(4)
        return int(answer.take("h")), _bytes(answer)

    def commit(self, frame: bytes) -> list[int]:
        """The code of each partition of the one topic."""
        self.send(frame)
        return self.receive_committed()

    def receive_committed(self) -> list[int]:
        data = self.receive()
        assert data is not None, "the broker hung up instead of answering"
        answer = Cursor(data)
        answer.skip(4)
        assert answer.take("i") == 1
        answer.string()
        codes = []
        for _ in range(answer.take("i")):
            answer.skip(4)
            codes.append(int(answer.take("h")))
        return codes

    def fetch_offsets(self, frame: bytes) -> tuple[int, dict[int, int]]:
        """The code of the answer, and the offset of each partition of the one topic."""
        answer = self.ask(frame)
        answer.skip(4)
        offsets: dict[int, int] = {}
        for _ in range(answer.take("i")):
            answer.string()
            for _ in range(answer.take("i")):
                partition = answer.take("i")
                offsets[partition] = answer.take("q")
                answer.skip(4)
                answer.string()
                assert answer.take("h") == NONE
        return int(answer.take("h")), offsets

    def describe(self, group: str) -> tuple[str | None, str | None, list[tuple[bytes, bytes]]]:
        """The state and the type of a group, and the metadata and the assignment of each member."""
        answer = self.ask(header(DESCRIBE_GROUPS, 4) + array([string(group)]) + i8(0))
        answer.skip(4)
        assert answer.take("i") == 1
        assert answer.take("h") == NONE
        answer.string()
        state, kind = answer.string(), answer.string()
        answer.string()
        members = []
        for _ in range(answer.take("i")):
            for _ in range(4):
                answer.string()
            members.append((_bytes(answer), _bytes(answer)))
        return state, kind, members

    def groups(self) -> set[str | None]:
        """The names of all groups."""
        answer = self.ask(header(LIST_GROUPS, 2))
        answer.skip(4)
        assert answer.take("h") == NONE
        found = set()
        for _ in range(answer.take("i")):
            found.add(answer.string())
            answer.string()
        return found

    def delete(self, group: str) -> int:
        answer = self.ask(header(DELETE_GROUPS, 1) + array([string(group)]))
        answer.skip(4)
        assert answer.take("i") == 1
        answer.string()
        return int(answer.take("h"))


def _bytes(answer: Cursor) -> bytes:
    length = answer.take("i")
    answer.skip(max(length, 0))
    return answer.data[answer.position - max(length, 0) : answer.position]
