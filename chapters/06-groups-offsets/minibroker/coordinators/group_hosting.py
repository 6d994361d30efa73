"""The group coordinators of a node: one for each partition of `__consumer_offsets` that the node leads."""

import uuid
from collections.abc import Callable, Mapping

from minibroker.coordinators import access
from minibroker.coordinators.answering import GroupHandlers
from minibroker.coordinators.finding import GROUP_KEY, FindCoordinator
from minibroker.coordinators.hosting import Coordinators
from minibroker.coordinators.internal_topics import offsets_topic, replication_factor_of
from minibroker.coordinators.regexes import compiled
from minibroker.coordinators.state_topics import StateTopic
from minibroker.coordinators.txn_commits import TransactionalCommits, marker_ticket, write_marker
from minibroker.groups.keys import GroupSettings
from minibroker.groups.shard import GroupShard
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.image import Image
from minibroker.metadata.names import GROUP_METADATA_TOPIC
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Registry
from minibroker.partitions.slices import in_parts
from minibroker.partitions.store import Store
from minibroker.replicas.membership import Membership
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.markers import Marker
from minibroker.transactions.verifying import Verifier
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.create_topics import CreatableTopic

_KEYS_PER_TURN = 1000
_BROKER = ""  # the group id under which the broker's settings are cached


class GroupCoordinators(Coordinators[GroupShard]):
    """All group coordinators of one node."""

    rows = access.GROUP_ROWS

    def __init__(
        self,
        machine: Machine,
        cluster: Membership,
        *,
        may_be_fenced: Callable[[], bool],
        other_topics: Mapping[int, StateTopic] | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """`other_topics` has the topics of other coordinators that FindCoordinator must find, by the type of key.

        `verifier` asks the coordinators of transactions. Without one, no offset can be part of a transaction.
        """
        super().__init__(machine, cluster, may_be_fenced=may_be_fenced)
        self._settings: dict[str, GroupSettings] = {}
        self.topic = StateTopic(GROUP_METADATA_TOPIC, cluster, self._creation)
        self._topics = {GROUP_KEY: self.topic, **(other_topics or {})}
        self._handlers = GroupHandlers(self.pass_on, self.coordinators)
        self._verifier = verifier

    def _creation(self) -> CreatableTopic:
        return offsets_topic(self.settings(), replication_factor_of(self._machine.config, self._image))

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Register the handlers of the group APIs and FindCoordinator. They replace chapter 03's."""
        self._store = store
        find = FindCoordinator(self._topics, lambda: self._image, may_be_fenced=self._may_be_fenced)
        registry.add(ApiKey.FIND_COORDINATOR, in_parts(find, "coordinator_keys", "coordinators", size=_KEYS_PER_TURN))
        self._handlers.add_handlers(registry)
        if self._verifier is not None:
            registry.add(ApiKey.TXN_OFFSET_COMMIT, TransactionalCommits(self.pass_on, self.topic, self._verifier))

    def write(self, name: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Write a marker into a partition of `__consumer_offsets`, as the only writer of the partition."""
        ticket, partition = marker_ticket(done), self._store.partition(*name)
        self.pass_to(name, ticket, lambda shard, now_ms: write_marker(partition, marker, ticket, shard, now_ms))

    def _on_image(self, old: Image, new: Image) -> None:
        if new.configs is not old.configs:
            self._settings.clear()
        super()._on_image(old, new)

    def settings(self, group_id: str = _BROKER) -> GroupSettings:
        """The settings of a group. Without a group id, those of the broker."""
        configs = self._image.configs
        key = group_id if (ConfigResource.GROUP, group_id) in configs else _BROKER
        found = self._settings.get(key)
        if found is None:
            config = self._machine.config.with_dynamic(configs)
            found = self._settings[key] = GroupSettings.of(config, configs.get((ConfigResource.GROUP, key)))
        return found

    def new_shard(self) -> GroupShard:
        """An empty shard with the current metadata."""
        return GroupShard(settings=self.settings, new_member_id=_new_member_id, matcher=compiled, image=self._image)


def _new_member_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4()}"
