"""What a voter must never forget: its epoch, and for whom it voted. A pure module.

    {"leaderId":-1,"leaderEpoch":7,"votedId":2,"votedDirectoryId":"tS0mTAtRRm2T3zUYpK2fWw","data_version":1}

The file is `quorum-state`, in Kafka's format. It is written, and flushed, before anybody hears of what it says: a voter
that forgets its vote in a crash could vote again, and one epoch would have two leaders.
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
NOBODY = -1


@dataclass(frozen=True)
class Election:
    """An epoch, who leads in it if that is known, and for whom this node has voted in it."""

    epoch: int = 0
    leader_id: int = NOBODY
    voted: VoterKey | None = None


class Ballot:
    """The file. Whoever changes it goes on only when the change is on the disk."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{QUORUM_STATE}"
        self.election = self._read()
        self.failure: str | None = None
        """Why nothing is written any more: after a write that failed nobody knows what a restart will find."""

    def write(self, election: Election) -> None:
        """Remember, durably. An epoch never goes back, and within one nothing is taken back."""
        old = self.election
        assert election.epoch >= old.epoch, f"epoch {election.epoch} after {old.epoch}"
        if election.epoch == old.epoch:
            assert old.voted in (None, election.voted), f"voted for {old.voted} in epoch {old.epoch} already"
            assert old.leader_id in (NOBODY, election.leader_id), f"{old.leader_id} leads epoch {old.epoch} already"
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
            raise LogOffline(f"{self.failure}: this node gives no vote until a restart has read what it gave")

    def _read(self) -> Election:
        data = checkpoint.content(self._files, self._path)
        if data is None:
            return Election()
        # A process may have died after it had renamed the file and before that was flushed: what is read here counts
        # as said, so it must be there after a power cut as well.
        self._files.fsync_directory(directory_of(self._path))
        return decode(data, self._path)


def encode(election: Election) -> bytes:
    """The text of the file."""
    voted = election.voted
    return json.dumps(
        {
            "leaderId": election.leader_id,
            "leaderEpoch": election.epoch,
            "votedId": NOBODY if voted is None else voted.node_id,
            "votedDirectoryId": uuid_text(bytes(16) if voted is None else voted.directory_id),
            "data_version": 1,
        },
        separators=(",", ":"),
    ).encode()


def decode(data: bytes, path: str) -> Election:
    """Read it back. One that cannot be read is no reason to guess: this node may have voted."""
    try:
        found = json.loads(data)
        voted_id = int(found["votedId"])
        voted = VoterKey(voted_id, parse_uuid(found["votedDirectoryId"])) if voted_id != NOBODY else None
        return Election(int(found["leaderEpoch"]), int(found["leaderId"]), voted)
    except (ValueError, KeyError, TypeError, WireError) as error:
        raise LogError(
            f"{path} cannot be read ({error}): restore it, or let the node come back as a new voter"
        ) from error
