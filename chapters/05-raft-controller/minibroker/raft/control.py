"""The control records of the quorum: the leader of an epoch, and the voter set. A pure module."""

from collections.abc import Iterator

from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.interfaces import Log
from minibroker.raft.voters import VoterSet, decode_voters, encode_voters
from minibroker.wire.schema import Message, Struct, array, int16, int32, uuid
from minibroker.wire.uuids import NO_UUID

_READ_BYTES = 1024**2


class LeaderChangeVoter(Struct):
    """A voter, in the record of a new leader."""

    voter_id: int = int32()
    voter_directory_id: bytes = uuid(versions="1+", default=NO_UUID)


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """The first record of an epoch, written by its leader. When it is committed, so is everything before it."""

    version: int = int16()
    leader_id: int = int32()
    voters: list[LeaderChangeVoter] = array(LeaderChangeVoter)
    granting_voters: list[LeaderChangeVoter] = array(LeaderChangeVoter)


def leader_change(leader_id: int, voters: VoterSet, granting: list[int], *, timestamp: int) -> BatchBuilder:
    """The batch with which a leader begins its epoch."""
    # Kafka writes version 0, which has no directories, and its tools read no other version.
    known = [LeaderChangeVoter(voter_id=it) for it in voters]
    message = LeaderChangeMessage(
        version=0, leader_id=leader_id, voters=known, granting_voters=[it for it in known if it.voter_id in granting]
    )
    builder = BatchBuilder(is_control=True)
    builder.append(timestamp=timestamp, key=control_key(ControlType.LEADER_CHANGE), value=message.encode(0))
    return builder


def decode_leader_change(value: bytes) -> LeaderChangeMessage:
    """The record of a new leader, in the version that its first field names: earlier releases wrote version 1."""
    message, _end = LeaderChangeMessage.decode(memoryview(value), 0, int.from_bytes(value[:2], "big"))
    return message


def add_voters(builder: BatchBuilder, voters: VoterSet, *, timestamp: int) -> BatchBuilder:
    """Add a voter set to a control batch."""
    builder.append(timestamp=timestamp, key=control_key(ControlType.KRAFT_VOTERS), value=encode_voters(voters))
    return builder


def control_key(kind: ControlType) -> bytes:
    """The key of a control record: a version and a type."""
    return (0).to_bytes(2, "big") + int(kind).to_bytes(2, "big")


def voter_sets(log: Log, offset: int) -> Iterator[tuple[int, VoterSet]]:
    """The voter sets in a log from `offset` on, each with its offset."""
    while offset < log.log_end_offset:
        found = list(batches(log.read(offset, bytes_max=_READ_BYTES).read()))
        assert found, f"no batch at offset {offset} of a log that ends at {log.log_end_offset}"
        for batch in found:
            if batch.header.is_control:
                for record in batch.records():
                    if control_type(record) == ControlType.KRAFT_VOTERS:
                        yield record.offset, decode_voters(record.value or b"")
            offset = batch.header.next_offset
