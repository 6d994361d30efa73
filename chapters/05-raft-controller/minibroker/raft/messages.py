"""The messages that nodes of the quorum exchange. A pure module.

The names and fields are Kafka's; the driver translates them into wire messages. A message to a voter names the voter
and its directory: a node that has got another disk since then is another voter, and must not answer.
"""

from typing import NamedTuple

from minibroker.raft.election import NO_NODE
from minibroker.raft.voters import VoterKey
from minibroker.replication.epochs import EpochEnd
from minibroker.wire.codes import ErrorCode

NO_RECORDS = memoryview(b"")


class Vote(NamedTuple):
    """A candidate asks for a vote or, if `is_pre_vote` is set, asks whether it would get one."""

    epoch: int
    candidate: VoterKey
    voter: VoterKey
    last_epoch: int
    last_offset: int
    """The end of the candidate's log."""
    is_pre_vote: bool = False


class Voted(NamedTuple):
    """The answer to `Vote`, with the voter's epoch and leader."""

    code: ErrorCode
    epoch: int
    leader_id: int = NO_NODE
    is_granted: bool = False


class BeginQuorumEpoch(NamedTuple):
    """A leader announces its epoch: the voters shall fetch from it."""

    epoch: int
    leader_id: int
    voter: VoterKey


class EndQuorumEpoch(NamedTuple):
    """A leader steps down, and names its successors, the voter with the longest log first."""

    epoch: int
    leader_id: int
    successors: tuple[VoterKey, ...]


class Heard(NamedTuple):
    """The answer to `BeginQuorumEpoch` and `EndQuorumEpoch`, with the node's epoch and leader."""

    code: ErrorCode
    epoch: int
    leader_id: int = NO_NODE


class SnapshotId(NamedTuple):
    """A snapshot replaces all records before `end_offset`; the last of these records has the epoch `epoch`."""

    end_offset: int
    epoch: int


class Fetch(NamedTuple):
    """A replica has everything before `offset` on its disk, and asks for the next records."""

    epoch: int
    replica: VoterKey
    offset: int
    last_epoch: int


class Fetched(NamedTuple):
    """The answer to `Fetch`: records, or where the logs diverge, or the snapshot that must be fetched first."""

    code: ErrorCode
    epoch: int
    leader_id: int = NO_NODE
    records: memoryview = NO_RECORDS
    high_watermark: int = -1
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None


class FetchSnapshot(NamedTuple):
    """A replica asks for a piece of a snapshot."""

    epoch: int
    replica: VoterKey
    snapshot: SnapshotId
    position: int


class SnapshotFetched(NamedTuple):
    """The answer to `FetchSnapshot`: a piece, and the size of the whole snapshot."""

    code: ErrorCode
    epoch: int
    leader_id: int = NO_NODE
    size: int = 0
    position: int = 0
    data: bytes = b""


Message = Vote | BeginQuorumEpoch | EndQuorumEpoch


class Send(NamedTuple):
    """An order: send a message to a node, and pass the answer to `Raft`."""

    node_id: int
    message: Message
