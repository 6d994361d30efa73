"""What nodes of the quorum say to each other. A pure module.

The names and fields are Kafka's; the driver puts them into the wire's tables. A message to a voter names the voter that
is meant, with its directory: one that has lost its disk since must not answer in the name of the other.
"""

from typing import NamedTuple

from minibroker.raft.election import NOBODY
from minibroker.raft.voters import VoterKey
from minibroker.replication.epochs import EpochEnd
from minibroker.wire.codes import ErrorCode

NO_RECORDS = memoryview(b"")


class Vote(NamedTuple):
    """Vote for me; or, before an epoch is begun, would you?"""

    epoch: int
    candidate: VoterKey
    voter: VoterKey
    last_epoch: int
    last_offset: int
    """The end of the candidate's log."""
    is_pre_vote: bool = False


class Voted(NamedTuple):
    """The answer to `Vote`, and what the voter knows."""

    code: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    is_granted: bool = False


class BeginQuorumEpoch(NamedTuple):
    """I lead this epoch: fetch from me."""

    epoch: int
    leader_id: int
    voter: VoterKey


class EndQuorumEpoch(NamedTuple):
    """I lead it no more; these have most of the log, the best first."""

    epoch: int
    leader_id: int
    successors: tuple[VoterKey, ...]


class Heard(NamedTuple):
    """The answer to both, and what the node knows."""

    code: ErrorCode
    epoch: int
    leader_id: int = NOBODY


class SnapshotId(NamedTuple):
    """What a snapshot stands for: everything before an offset, the last of it of an epoch."""

    end_offset: int
    epoch: int


class Fetch(NamedTuple):
    """Send me what comes after this; I have everything before it, on my disk."""

    epoch: int
    replica: VoterKey
    offset: int
    last_epoch: int


class Fetched(NamedTuple):
    """The answer to `Fetch`: records; or where the logs part; or that a snapshot must be fetched first."""

    code: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    records: memoryview = NO_RECORDS
    high_watermark: int = -1
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None


class FetchSnapshot(NamedTuple):
    """Send me a piece of a snapshot."""

    epoch: int
    replica: VoterKey
    snapshot: SnapshotId
    position: int


class SnapshotFetched(NamedTuple):
    """A piece of it, and how large it is as a whole."""

    code: ErrorCode
    epoch: int
    leader_id: int = NOBODY
    size: int = 0
    position: int = 0
    data: bytes = b""


Message = Vote | BeginQuorumEpoch | EndQuorumEpoch


class Send(NamedTuple):
    """An order: send a message to a node, and bring back the answer."""

    node_id: int
    message: Message
