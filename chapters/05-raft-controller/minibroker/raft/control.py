"""The records that the quorum writes for itself: who has begun to lead, and who votes. A pure module."""

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
    """An epoch has a leader. Its first record: with it, everything before becomes committed, too."""

    version: int = int16()
    leader_id: int = int32()
    voters: list[LeaderChangeVoter] = array(LeaderChangeVoter)
    granting_voters: list[LeaderChangeVoter] = array(LeaderChangeVoter)


def leader_change(leader_id: int, voters: VoterSet, granting: list[int], *, timestamp: int) -> BatchBuilder:
    """The batch that a leader begins its epoch with."""
    known = [LeaderChangeVoter(voter_id=it, voter_directory_id=voters.key_of(it).directory_id) for it in voters]
    message = LeaderChangeMessage(
        version=1, leader_id=leader_id, voters=known, granting_voters=[it for it in known if it.voter_id in granting]
    )
    builder = BatchBuilder(is_control=True)
    builder.append(timestamp=timestamp, key=control_key(ControlType.LEADER_CHANGE), value=message.encode(1))
    return builder


def add_voters(builder: BatchBuilder, voters: VoterSet, *, timestamp: int) -> BatchBuilder:
    """Put a set of voters into a control batch."""
    builder.append(timestamp=timestamp, key=control_key(ControlType.KRAFT_VOTERS), value=encode_voters(voters))
    return builder


def control_key(kind: ControlType) -> bytes:
    """The key of a control record: a version, and its type."""
    return (0).to_bytes(2, "big") + int(kind).to_bytes(2, "big")


def voter_sets(log: Log, offset: int) -> Iterator[tuple[int, VoterSet]]:
    """The sets of voters in a log from `offset` on, each with its offset."""
    while offset < log.log_end_offset:
        found = list(batches(log.read(offset, bytes_max=_READ_BYTES).read()))
        assert found, f"no batch at {offset} of {log.log_end_offset}"
        for batch in found:
            if batch.header.is_control:
                for record in batch.records():
                    if control_type(record) == ControlType.KRAFT_VOTERS:
                        yield record.offset, decode_voters(record.value or b"")
            offset = batch.header.next_offset
