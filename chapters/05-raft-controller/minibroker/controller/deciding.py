"""An authority on a log that a majority keeps: chapter 03's port, chapter 05's promise. A pure module.

A decision has two moments. When the leader appends it, it is *made*: later commands are held against it. When a
majority has it, it is *decided*: only then does anybody hear of it, for until then another leader might never have
known it. So an active controller has two images:

    image     everything that is decided, on every node the same at the same offset
    _ahead    the same and what is made but not decided; nobody but the controller sees it

A node that stops leading forgets what is ahead, and whoever waits for it is told that somebody else decides now.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import minibroker.controller.records  # noqa: F401 - the log that is folded here has them
from minibroker.log.errors import StorageError
from minibroker.metadata.authority import Listener, Listeners, Proposal, batch_of, read_records
from minibroker.metadata.decision import Command, decide
from minibroker.metadata.image import Image, fold_all
from minibroker.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    FeatureLevelRecord,
    MetadataRecord,
    RemoveTopicRecord,
)
from minibroker.raft.node import Raft
from minibroker.wire.codes import ErrorCode

R = TypeVar("R")


@dataclass(slots=True)
class _Made:
    """A decision that a majority does not have yet."""

    next_offset: int
    proposal: Proposal[Any]
    command: Command[Any]
    result: Any


class Controller:
    """What a node knows of the metadata, and, while it leads the quorum, how they change.

    Call `catch_up` after whatever happened to the quorum's node: it folds what is decided by now, tells the listeners
    and completes proposals, by calling `done` with each.
    """

    def __init__(
        self,
        raft: Raft,
        image: Image,
        *,
        clock: Callable[[], int],
        done: Callable[[Proposal[Any]], None] = lambda _proposal: None,
    ) -> None:
        """Begin with the image of a snapshot, or with an empty one. `clock` is for the timestamps of batches."""
        self.raft = raft
        self.image = image
        self._clock = clock
        self._done = done
        self._ahead: Image | None = None
        self._active_epoch = -1
        self._made: deque[_Made] = deque()
        self._listeners = Listeners()
        # Whoever reads the whole log anyway notes what nobody should have to read it for again.
        self._removed: set[bytes] | None = set()
        self.on_active: Callable[[], None] = lambda: None
        """Called when this node begins to decide."""

    # The port ---------------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this node decides: it leads, and everything that earlier leaders have decided is in its image."""
        return self._ahead is not None

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Make a decision; the proposal is done when a majority has it."""
        # No listener proposes (`_listeners.is_telling`), we assert: others have not heard yet of what it was told.
        assert not self._listeners.is_telling, "a listener proposes"
        proposal: Proposal[R] = Proposal()
        # Who does not decide refuses at once, and says who does.
        if self._ahead is None:
            proposal.complete(command.refuse(ErrorCode.NOT_CONTROLLER, self._who_decides()))
            return proposal
        # What is made counts for what comes next, decided or not.
        decision = decide(self._ahead, command)
        # Where nothing is to be written, it may still rest on what is only made: it is true when that is decided.
        if not decision.records:
            self._wait(proposal, command, decision.result)
            return proposal
        # A disk that refuses (`StorageError`) is an answer, too: KAFKA_STORAGE_ERROR.
        try:
            self._append(decision.records)
        except StorageError as error:
            proposal.complete(command.refuse(ErrorCode.KAFKA_STORAGE_ERROR, f"metadata could not be written: {error}"))
            return proposal
        # What is made waits until it is decided. Who votes alone has decided it by now, so catch up.
        self._wait(proposal, command, decision.result)
        self.catch_up()
        return proposal

    def _who_decides(self) -> str:
        leader_id = self.raft.leader_id
        return (
            f"node {leader_id} decides" if leader_id >= 0 else "nobody decides at the moment: an election is under way"
        )

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        assert self._ahead is not None
        base_offset = self.raft.append(batch_of(records, timestamp=self._clock()))
        self._ahead = fold_all(self._ahead, enumerate(records, start=base_offset))

    def _wait(self, proposal: Proposal[R], command: Command[R], result: R) -> None:
        next_offset = self.raft.log.log_end_offset
        if next_offset <= self.raft.high_watermark and not self._made:
            proposal.complete(result)
        else:
            self._made.append(_Made(next_offset, proposal, command, result))

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change, in the order of subscription. It must not propose."""
        self._listeners.add(listener)

    def removed_topics(self) -> Collection[bytes]:
        """The topics of which the log says that they were deleted. Ask once, at the start: then they are forgotten.

        What was deleted before the last snapshot it does not say any more. That loses nothing and brings nothing back:
        a directory whose topic is in no image, and of which nobody says that it was deleted, is set aside under another
        name; and a new topic of the same name has another id, so that it never takes such a directory for its own. All
        it costs is room, until an operator removes what was set aside.
        """
        removed, self._removed = self._removed, None
        return frozenset(removed or ())

    # Following the log ------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Fold what is decided by now; begin or cease to decide."""
        self._fold()
        if self.is_active and (not self.raft.is_leader or self.raft.epoch != self._active_epoch):
            self._retire()
        if not self.is_active and self.raft.is_leader and self.raft.high_watermark > self.raft.epoch_start_offset:
            self._activate()
        self._complete()

    def _fold(self) -> None:
        old, upto_offset = self.image, self.raft.high_watermark
        if old.offset + 1 >= upto_offset:
            return
        records = read_records(self.raft.log, max(old.offset + 1, self.raft.log.log_start_offset))
        decided = [(offset, record) for offset, record in records if offset < upto_offset]
        if self._removed is not None:
            self._removed.update(it.topic_id for _offset, it in decided if isinstance(it, RemoveTopicRecord))
        # Control batches hold no metadata: the last offset may be one of theirs.
        self.image = fold_all(old, decided)
        if self.image is not old:
            self._listeners.tell(old, self.image)

    def _activate(self) -> None:
        """All that was decided before is in the image: from here on this node decides."""
        self._active_epoch = self.raft.epoch
        self._ahead = self.image
        if METADATA_VERSION not in self.image.features:
            # As in every log of Kafka's, the first record says which records may follow.
            self._append([FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL)])
        self.on_active()

    def _retire(self) -> None:
        """Another node decides, or will. What was made may have been decided or not: nobody here can tell."""
        # Nothing is ahead any more. Whoever waits is refused, and told who decides; `_done` hears of each proposal.
        self._ahead = None
        made, self._made = self._made, deque()
        for it in made:
            it.proposal.complete(it.command.refuse(ErrorCode.NOT_CONTROLLER, self._who_decides()))
            self._done(it.proposal)

    def _complete(self) -> None:
        # In the order in which they were made, as far as is decided. `_done` hears of each.
        while self._made and self._made[0].next_offset <= self.raft.high_watermark:
            it = self._made.popleft()
            it.proposal.complete(it.result)
            self._done(it.proposal)

    def reset(self, image: Image) -> None:
        """A snapshot has taken the place of the log's beginning: go on from its image."""
        assert not self.is_active, "a leader needs nobody's snapshot"
        old, self.image = self.image, image
        self._listeners.tell(old, image)
