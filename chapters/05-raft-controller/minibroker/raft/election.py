"""The epoch and the vote of a voter, which it must never forget. A pure module.

    {"leaderId":-1,"leaderEpoch":7,"votedId":2,"votedDirectoryId":"tS0mTAtRRm2T3zUYpK2fWw","data_version":1}

The file is `quorum-state`, in Kafka's format. It is written and flushed before its content is sent to another node: a
voter that forgets its vote in a crash could vote again, and one epoch would have two leaders.
"""

import json
from dataclasses import dataclass

from minibroker.log.errors import LogError, LogOffline
from minibroker.log.interfaces import Files, directory_of
from minibroker.raft.voters import VoterKey
from minibroker.segments import checkpoint
from minibroker.wire.errors import WireError
from minibroker.wire.uuids import parse_uuid, uuid_text

QUORUM_STATE = "quorum-state"
NO_NODE = -1
EPOCH_MAX = 2**30
"""The last epoch. At one election per second a cluster reaches it after 34 years. The 32-bit field of a message has
room for larger epochs, so a message with an epoch that is too large can be read and refused."""


@dataclass(frozen=True)
class Election:
    """An epoch, its leader if known, and the candidate for which this node has voted in it."""

    epoch: int = 0
    leader_id: int = NO_NODE
    voted: VoterKey | None = None


class Ballot:
    """The file `quorum-state`. A write returns only when the data is on the disk."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{QUORUM_STATE}"
        self.election = self._read()
        self.failure: str | None = None
        """The first write that failed. Nothing is written after it, because the content of the file is unknown."""

    def write(self, election: Election) -> None:
        """Write durably. The epoch never decreases, and within an epoch a vote or leader, once set, never changes."""
        old = self.election
        assert election.epoch >= old.epoch, f"the epoch would go back from {old.epoch} to {election.epoch}"
        if election.epoch == old.epoch:
            assert old.voted in (None, election.voted), f"this node voted for {old.voted} in epoch {old.epoch} already"
            leads = f"node {old.leader_id} leads epoch {old.epoch} already"
            assert old.leader_id in (NO_NODE, election.leader_id), leads
        if election != old:
            self._write(election)
            self.election = election

    def _write(self, election: Election) -> None:
        if self.failure is None:
            try:
                checkpoint.write(self._files, self._path, encode(election))
            except OSError as error:
                self.failure = f"{self._path} could not be written ({error.strerror})"
        if self.failure is not None:
            raise LogOffline(f"{self.failure}: this node does not vote until a restart has read its last vote")

    def _read(self) -> Election:
        data = checkpoint.content(self._files, self._path)
        if data is None:
            return Election()
        # A process may have died after it renamed the file and before it flushed the rename. Flush it now, because this
        # node may repeat the vote that it reads here, without writing it again.
        self._files.fsync_directory(directory_of(self._path))
        return decode(data, self._path)


def encode(election: Election) -> bytes:
    """The text of the file."""
    voted = election.voted
    return json.dumps(
        {
            "leaderId": election.leader_id,
            "leaderEpoch": election.epoch,
            "votedId": NO_NODE if voted is None else voted.node_id,
            "votedDirectoryId": uuid_text(bytes(16) if voted is None else voted.directory_id),
            "data_version": 1,
        },
        separators=(",", ":"),
    ).encode()


def decode(data: bytes, path: str) -> Election:
    """Read the file back. A damaged file is an error: without the vote in it, this node could vote twice."""
    try:
        found = json.loads(data)
        voted_id = int(found["votedId"])
        voted = VoterKey(voted_id, parse_uuid(found["votedDirectoryId"])) if voted_id != NO_NODE else None
        election = Election(int(found["leaderEpoch"]), int(found["leaderId"]), voted)
    except (ValueError, KeyError, TypeError, WireError) as error:
        raise LogError(
            f"{path} cannot be read ({error}): restore it, or start the node with an empty data directory, as a new"
            " voter"
        ) from error
    if election.epoch > EPOCH_MAX:
        raise LogError(
            f"{path} has epoch {election.epoch}, which no election can have begun: the last epoch is {EPOCH_MAX}. Stop"
            " all nodes, and find the largest epoch in their files leader-epoch-checkpoint beside this file. On each"
            ' node replace this file by {"leaderId":-1,"leaderEpoch":E,"votedId":-1,'
            f'"votedDirectoryId":"{uuid_text(bytes(16))}","data_version":1}} where E is larger than that epoch and the'
            " same on all nodes"
        )
    return election
