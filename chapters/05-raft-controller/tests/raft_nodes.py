"""Nodes of a quorum for tests: the real log, ballot and state machine on a disk in memory, without a network."""

from collections.abc import Callable

from minibroker.log.memory import MemoryFiles
from minibroker.raft.election import Ballot
from minibroker.raft.node import Raft
from minibroker.raft.snapshots import SnapshotFiles
from minibroker.raft.state import RaftSettings
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replication.epochs import EpochCache
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog

DIRECTORY = "__cluster_metadata-0"


def directory_id(node_id: int, number: int = 0) -> bytes:
    """The id of a node's directory; another number is another disk."""
    return bytes([node_id, number]).rjust(16, b"\1")


def voters(*node_ids: int) -> VoterSet:
    """A voter set with known directories."""
    return VoterSet.of(Voter(VoterKey(it, directory_id(it)), "127.0.0.1", 9000 + it) for it in node_ids)


class QuorumNode:
    """A node of the quorum on its own disk, which can be restarted."""

    def __init__(
        self,
        node_id: int,
        bootstrap: VoterSet,
        *,
        chance: Callable[[int], int],
        files: MemoryFiles | None = None,
        settings: RaftSettings | None = None,
        config: LogConfig | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.key = VoterKey(node_id, directory_id(node_id))
        self.bootstrap = bootstrap
        self.chance = chance
        self.files = files or MemoryFiles()
        self.settings = settings
        self.config = config
        self.clock = clock

    def open(self, now_ms: int, *, snapshots: SnapshotFiles | None = None) -> Raft:
        """Start the process: read the disk."""
        epochs = EpochCache(self.files, DIRECTORY)
        log = SegmentedLog.open(self.files, DIRECTORY, self.config, companions=[epochs])
        ballot = Ballot(self.files, DIRECTORY)
        self.raft = Raft(
            self.key,
            log,
            epochs,
            ballot,
            self.bootstrap,
            chance=self.chance,
            now_ms=now_ms,
            settings=self.settings,
            snapshots=snapshots,
            clock=self.clock,
        )
        return self.raft

    def lose_disk(self) -> None:
        """Replace the disk with an empty one, and so become another voter."""
        self.files = MemoryFiles()
        self.key = VoterKey(self.key.node_id, directory_id(self.key.node_id, self.key.directory_id[-1] + 1))
