"""The controller: chapter 03's authority on a replicated log. A pure module.

A decision takes two steps. First the leader appends the records of the decision; later commands are checked against
them. The records are *committed* when a majority has them. No node acts on an uncommitted record, because the next
leader may not have it. So an active controller has two images:

    image     all committed records; at the same offset it is the same on every node
    _ahead    all committed and uncommitted records; only the controller uses it

A controller that is deposed drops `_ahead`, and refuses the commands that wait for a commit.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import minibroker.controller.records  # noqa: F401 - declares the records that this module folds
from minibroker.log.errors import StorageError
from minibroker.metadata.authority import Listener, Listeners, Proposal, batch_of, read_records
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.decision import Command, decide
from minibroker.metadata.image import Image, fold_all
from minibroker.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    SUPPORTED_FEATURES,
    ConfigRecord,
    FeatureLevelRecord,
    LevelRange,
    MetadataRecord,
    RemoveTopicRecord,
)
from minibroker.raft.node import Raft
from minibroker.replication.eligible import (
    ELIGIBLE_LEADER_REPLICAS_LEVEL,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    changes_of_min_isr,
)
from minibroker.wire.codes import ErrorCode

R = TypeVar("R")

_NO_CONFIGS: Mapping[str, str] = {}
FIRST_FEATURES: Mapping[str, int] = {
    METADATA_VERSION: METADATA_VERSION_LEVEL,
    ELIGIBLE_LEADER_REPLICAS_VERSION: ELIGIBLE_LEADER_REPLICAS_LEVEL,
}
SUPPORTED_BY_CONTROLLER: Mapping[str, LevelRange] = {
    **SUPPORTED_FEATURES,
    ELIGIBLE_LEADER_REPLICAS_VERSION: LevelRange(0, ELIGIBLE_LEADER_REPLICAS_LEVEL),
}
"""The levels of the features that a node with a controller supports."""


@dataclass(slots=True)
class _Uncommitted:
    """A decision whose records are not committed yet."""

    next_offset: int
    proposal: Proposal[Any]
    command: Command[Any]
    result: Any


class Controller:
    """The metadata of a node. While the node leads the quorum, commands change them.

    Call `catch_up` after every event of `raft`. It folds the committed records, calls the listeners, completes the
    proposals whose records are committed, and calls `done` with each of these proposals.
    """

    def __init__(
        self,
        raft: Raft,
        image: Image,
        *,
        clock: Callable[[], int],
        done: Callable[[Proposal[Any]], None] = lambda _proposal: None,
        features: Mapping[str, int] = FIRST_FEATURES,
        configs: Mapping[str, str] = _NO_CONFIGS,
    ) -> None:
        """Begin with the image of a snapshot, or with an empty one. `clock` gives the timestamps of batches.

        `features` has the feature levels that this controller sets if they are not set yet, metadata.version first.
        `configs` has configurations that it sets for all brokers in the same way.
        """
        self.raft = raft
        self.image = image
        self._features = features
        self._configs = configs
        self._clock = clock
        self._done = done
        self._ahead: Image | None = None
        self._active_epoch = -1
        self._uncommitted: deque[_Uncommitted] = deque()
        self._listeners = Listeners()
        self._removed: set[bytes] | None = set()
        """The ids of deleted topics, collected while the log is folded. None after `removed_topics` was called."""
        self.on_active: Callable[[], None] = lambda: None
        """Called when this node becomes the active controller."""

    # The authority ----------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller: it leads, and its image has all records of earlier leaders.

        Until the next `catch_up`, this is also true of a controller that has just been deposed.
        """
        return self._ahead is not None

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Run a command and append its records; the proposal is done when they are committed.

        A proposal that need not wait is completed at once, and `done` is not called with it: if this node is not the
        active controller (NOT_CONTROLLER) or cannot write (KAFKA_STORAGE_ERROR), or if all is committed already.
        """
        # Assert that no listener is being called (`_listeners.is_telling`). A listener must not propose, because the
        # listeners after it have not seen the change yet.
        assert not self._listeners.is_telling, "a listener called propose"
        proposal: Proposal[R] = Proposal()
        # A node that is not the active controller refuses at once, and names the controller. A node whose disk has just
        # failed does not lead any more, even before it catches up.
        if self._ahead is None or not self.raft.is_leader:
            proposal.complete(command.refuse(ErrorCode.NOT_CONTROLLER, self._name_controller()))
            return proposal
        # Check the command against all appended records, committed or not.
        decision = decide(self._ahead, command)
        # A command without records may still depend on uncommitted ones: it waits until those records are committed.
        if not decision.records:
            self._wait(proposal, command, decision.result)
            return proposal
        # If the disk refuses the write (`StorageError`), answer with KAFKA_STORAGE_ERROR.
        try:
            self._append([*decision.records, *changes_of_min_isr(self._ahead, decision.records)])
        except StorageError as error:
            proposal.complete(command.refuse(ErrorCode.KAFKA_STORAGE_ERROR, f"metadata could not be written: {error}"))
            return proposal
        # The proposal waits for the commit. With a single voter the records are committed already, so catch up.
        self._wait(proposal, command, decision.result)
        self.catch_up()
        return proposal

    def _name_controller(self) -> str:
        leader_id = self.raft.leader_id
        return (
            f"the controller is node {leader_id}"
            if leader_id >= 0
            else "there is no controller at the moment: an election is under way"
        )

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        assert self._ahead is not None
        base_offset = self.raft.append(batch_of(records, timestamp=self._clock()))
        self._ahead = fold_all(self._ahead, enumerate(records, start=base_offset))

    def _wait(self, proposal: Proposal[R], command: Command[R], result: R) -> None:
        next_offset = self.raft.log.log_end_offset
        if next_offset <= self.raft.high_watermark and not self._uncommitted:
            proposal.complete(result)
        else:
            self._uncommitted.append(_Uncommitted(next_offset, proposal, command, result))

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change, in the order of subscription. It must not propose."""
        self._listeners.add(listener)

    def removed_topics(self) -> Collection[bytes]:
        """The ids of topics whose deletion is in the log. A second call returns none.

        Deletions before the last snapshot are no longer in the log. Such a topic is in no image, but it is not known to
        be deleted, so its directory is renamed and kept. That is safe: a new topic of the same name has another id, and
        does not use the directory. The directory takes disk space until an operator removes it.
        """
        removed, self._removed = self._removed, None
        return frozenset(removed or ())

    # Following the log ------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Fold the committed records. Become the active controller, or stop being it, if the leadership has changed.

        An error of the disk is raised. `on_active` may propose, so everything else is set before it is called.
        """
        self._fold()
        if self.is_active and (not self.raft.is_leader or self.raft.epoch != self._active_epoch):
            self._deactivate()
        if not self.is_active and self.raft.is_leader and self.raft.high_watermark > self.raft.epoch_start_offset:
            self._activate()
        self._complete()

    def _fold(self) -> None:
        old, upto_offset = self.image, self.raft.high_watermark
        if old.offset + 1 >= upto_offset:
            return
        records = read_records(self.raft.log, max(old.offset + 1, self.raft.log.log_start_offset))
        committed = [(offset, record) for offset, record in records if offset < upto_offset]
        if self._removed is not None:
            self._removed.update(it.topic_id for _offset, it in committed if isinstance(it, RemoveTopicRecord))
        # Control batches have no metadata records, so the offset of the image may be below the last committed offset.
        self.image = fold_all(old, committed)
        if self.image is not old:
            self._listeners.tell(old, self.image)

    def _activate(self) -> None:
        """Become the active controller. The image has all records that earlier leaders have committed."""
        self._active_epoch = self.raft.epoch
        self._ahead = self.image
        # As in Kafka, the first record of the log names the version of the records that follow.
        missing = [*self._missing_features(), *self._missing_configs()]
        if missing:
            self._append(missing)
        self.on_active()

    def _missing_features(self) -> list[MetadataRecord]:
        missing = [(name, level) for name, level in self._features.items() if name not in self.image.features]
        return [FeatureLevelRecord(name=name, feature_level=level) for name, level in missing]

    def _missing_configs(self) -> list[MetadataRecord]:
        known = self.image.configs.get((ConfigResource.BROKER, ""), {})
        missing = [(name, value) for name, value in self._configs.items() if name not in known]
        return [
            ConfigRecord(resource_type=ConfigResource.BROKER, resource_name="", name=name, value=value)
            for name, value in missing
        ]

    def _deactivate(self) -> None:
        """Stop being the active controller. Whether the uncommitted records will be committed is unknown."""
        # Drop `_ahead`. Refuse each uncommitted proposal with a message that names the controller; then pass the
        # proposal to `_done`.
        self._ahead = None
        made, self._uncommitted = self._uncommitted, deque()
        for it in made:
            it.proposal.complete(it.command.refuse(ErrorCode.NOT_CONTROLLER, self._name_controller()))
            self._done(it.proposal)

    def _complete(self) -> None:
        # Complete the proposals in the order of the log, up to the high watermark, and pass each to `_done`.
        while self._uncommitted and self._uncommitted[0].next_offset <= self.raft.high_watermark:
            it = self._uncommitted.popleft()
            it.proposal.complete(it.result)
            self._done(it.proposal)

    def reset(self, image: Image) -> None:
        """Continue from the image of a snapshot, which has replaced the beginning of the log."""
        assert not self.is_active, "a leader does not fetch a snapshot"
        old, self.image = self.image, image
        self._listeners.tell(old, image)
