"""The partitions of this node: logs on disk that follow the image of the metadata.

The directories follow the image. A new topic gets its directories, a deleted topic loses them, and a changed
configuration is applied to the logs. After a crash during a change, the next start completes it. Each directory has
the id of its topic in `partition.metadata`, so a new topic with the same name never gets the data of a deleted topic. A
directory that the metadata do not assign to this node is renamed to `…-stray`, unless its topic was deleted.

Partitions of another kind can be plugged in: `open_partition` opens one, and `on_changed` is called when its metadata
change. The metadata log is not a topic of the image. Its owner adds it as an internal partition, which only other nodes
may fetch.
"""

import logging
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

from minibroker.log.errors import LogError
from minibroker.log.interfaces import Files, write_all
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import Image, PartitionImage, TopicImage
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC
from minibroker.partitions.errors import Disconnect, Refused
from minibroker.partitions.partition import LocalPartition, SoleReplica, wake_all
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.routes import Leader, Serve
from minibroker.segments.checkpoint import TopicPartition, content
from minibroker.segments.directory import DataDirectory
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import parse_uuid, uuid_text

log = logging.getLogger(__name__)

PARTITION_METADATA = "partition.metadata"
_PARTITION_METADATA = re.compile(rb"version: 0\ntopic_id: ([\w-]{22})\n")
METADATA = TopicPartition(CLUSTER_METADATA_TOPIC, 0)

# Opens a partition of this node, given its name, its topic's id, its image, and its topic's configuration.
OpenPartition = Callable[[TopicPartition, bytes, PartitionImage, TopicConfig], LocalPartition]
# Called with the old and the new image of an open partition. The old image is None if the partition was just opened,
# the new one is None if it was deleted.
OnChanged = Callable[[TopicPartition, PartitionImage | None, PartitionImage | None], None]


class Store:
    """The partitions of one node. It implements `Routes` for the handlers."""

    def __init__(
        self,
        data: DataDirectory,
        files: Files,
        *,
        node_id: int,
        topic_config: Callable[[Image, str], TopicConfig],
        wake: Callable[[Hashable], None],
        open_partition: OpenPartition | None = None,
        on_changed: OnChanged | None = None,
    ) -> None:
        self._data = data
        self._files = files
        self._node_id = node_id
        self._topic_config = topic_config
        self._wake = wake
        self._open_partition = open_partition or self._open_local
        self._on_changed = on_changed or (lambda _name, _old, _new: None)
        self._internal: dict[bytes, Serve] = {}
        self._image: Image | None = None
        self._partitions: dict[TopicPartition, LocalPartition] = {}
        self._failed: dict[TopicPartition, str] = {}

    # Routes -----------------------------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> LocalPartition:
        """The partition, which must be on this node."""
        # This is faster than TopicPartition(…). Every produce and fetch runs it.
        name = tuple.__new__(TopicPartition, (topic, index))
        found = self._partitions.get(name)
        if found is None:
            self._refuse(name)
        return found

    def _refuse(self, name: TopicPartition) -> NoReturn:
        if name in self._failed:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, self._failed[name])
        if self.image.partition(name) is not None:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self._node_id} has no replica of {name.directory}")
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name.partition} of {name.topic!r}")

    def topic_name(self, topic_id: bytes) -> str:
        """The name of the topic that has this id."""
        name = self.image.topic_names.get(topic_id)
        if name is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_text(topic_id)}")
        return name

    def leader(self, name: TopicPartition, listener: str) -> Leader | None:
        """The leader of a partition, and the address of its listener with this name; None if either is unknown."""
        partition = self.image.partition(name)
        broker = self.image.brokers.get(partition.leader) if partition is not None else None
        endpoint = None if broker is None else broker.endpoint(listener)
        if partition is None or broker is None or endpoint is None or broker.is_fenced:
            return None
        return Leader(broker.node_id, partition.leader_epoch, endpoint.host, endpoint.port, broker.rack)

    @property
    def internal(self) -> Mapping[bytes, Serve]:
        """The functions that answer the fetches of internal partitions, by topic id."""
        return self._internal

    def add_internal(self, topic_id: bytes, serve: Serve) -> None:
        """Let other nodes fetch a log that is not in the image. `serve` answers them."""
        self._internal[topic_id] = serve

    @property
    def image(self) -> Image:
        """The image that the directories follow."""
        if self._image is None:
            raise Disconnect("this node has not joined its cluster yet")
        return self._image

    def __iter__(self) -> Iterator[LocalPartition]:
        return iter(list(self._partitions.values()))

    def logs(self) -> Iterable[tuple[TopicPartition, SegmentedLog]]:
        """Every log with its name."""
        return [(name, partition.log) for name, partition in sorted(self._partitions.items())]

    def wake(self, name: TopicPartition) -> None:
        """Wake all requests that wait for a partition."""
        wake_all(self._wake, name)

    # Following the image ----------------------------------------------------------------------------------------------

    def follow(self, old: Image, new: Image) -> None:
        """Apply a change of the image to the directories. Unchanged topics are the same objects in both images."""
        self._image = new
        gone: dict[TopicPartition, PartitionImage] = {}
        for topic in old.topics.values():
            if new.topics.get(topic.name) is not topic:
                gone |= self._only_in(topic, new)
        self._delete(gone)
        # The configuration comes first: a change of a partition may follow from it.
        if new.configs is not old.configs:
            self._configure()
        for topic in new.topics.values():
            if old.topics.get(topic.name) is not topic:
                self._open(topic, self._only_in(topic, old), is_new=True)
                self._report_changes(topic, _same_topic(topic, old))

    def _only_in(self, topic: TopicImage, other: Image) -> dict[TopicPartition, PartitionImage]:
        """The partitions of a topic that this node hosts in one image, but not in the other."""
        others = _same_topic(topic, other)
        return {
            TopicPartition(topic.name, index): partition
            for index, partition in topic.partitions.items()
            if others.get(index) is not partition
            and self._is_hosted(partition)
            and not self._is_hosted(others.get(index))
        }

    def _is_hosted(self, partition: PartitionImage | None) -> bool:
        return partition is not None and self._node_id in partition.replicas

    def _report_changes(self, topic: TopicImage, before: Mapping[int, PartitionImage]) -> None:
        """Report the changes of partitions that this node already hosted."""
        for index, partition in topic.partitions.items():
            old = before.get(index)
            if old is partition or not self._is_hosted(old):
                continue
            name = TopicPartition(topic.name, index)
            if name in self._partitions:
                self._on_changed(name, old, partition)

    def start(self, image: Image, *, removed_topics: Callable[[], Collection[bytes]] = frozenset) -> None:
        """Open the partitions of this node, and clear leftover directories."""
        self.begin(image)
        for _name in self.clear_leftovers(removed_topics):
            pass

    def begin(self, image: Image) -> None:
        """Open the partitions that the image assigns to this node."""
        self._image = image
        for topic in image.topics.values():
            self._open(topic, self._only_in(topic, Image()), is_new=False)
        for name, offset in self._data.missing.items():
            if name in self._partitions:
                log.error("%s starts empty: its directory with records up to %d is missing", name.directory, offset)

    def clear_leftovers(self, removed_topics: Callable[[], Collection[bytes]]) -> Iterator[TopicPartition]:
        """Clear the directories that the image does not assign to this node, one per step, because there may be
        thousands.

        `removed_topics` returns the ids of topics that the metadata log has deleted. Their directories are deleted.
        They are left over from a crash, or from a time when this node was down. Other directories are renamed and kept.
        """
        left = [name for name in self._data.partitions() if self._is_leftover(name)]
        removed = removed_topics() if left else ()
        for name in left:
            # A topic may have been created again between two steps, and then its directory is in use.
            if self._is_leftover(name):
                self._clear_leftover(name, removed)
            yield name

    def _is_leftover(self, name: TopicPartition) -> bool:
        return name != METADATA and not self._is_hosted(self.image.partition(name))

    def _clear_leftover(self, name: TopicPartition, removed: Collection[bytes]) -> None:
        match = _PARTITION_METADATA.fullmatch(content(self._files, self._metadata_path(name)) or b"")
        try:
            if match is not None and parse_uuid(match[1].decode()) in removed:
                self._data.delete_log(name)
            else:
                aside = self._data.set_aside(name)
                known = "do not contain it" if self.image.partition(name) is None else "place it on other nodes"
                log.warning("%s: the metadata %s, so it is renamed to %s", name.directory, known, aside)
        except FileNotFoundError:
            # The topic was created and deleted again between two steps.
            pass
        except OSError as error:
            log.error("leftover directory %s could not be deleted or renamed: %s", name.directory, error)

    def _open(self, topic: TopicImage, added: Mapping[TopicPartition, PartitionImage], *, is_new: bool) -> None:
        """Open partitions of a topic. If the files of one cannot be read, only that partition is offline."""
        if not added:
            return
        config = self._topic_config(self.image, topic.name)
        for name, partition in added.items():
            try:
                self._claim(name, topic.topic_id, is_new=is_new)
                self._partitions[name] = self._open_partition(name, topic.topic_id, partition, config)
                self._failed.pop(name, None)
            except (LogError, OSError) as error:
                log.error("%s is offline: %s", name.directory, error)
                self._failed[name] = str(error)
            else:
                self._on_changed(name, None, partition)
            wake_all(self._wake, name)

    def _open_local(
        self, name: TopicPartition, _topic_id: bytes, partition: PartitionImage, config: TopicConfig
    ) -> LocalPartition:
        producers = ProducerStates(self._files, self._data.directory_of(name))
        opened = self._data.open_log(name, config.log_config, companions=[producers])
        replica = SoleReplica(name, opened, leader_epoch=partition.leader_epoch, wake=self._wake)
        return LocalPartition(name, opened, producers, config, replica)

    def _claim(self, name: TopicPartition, topic_id: bytes, *, is_new: bool) -> None:
        """Write the topic id into the directory. Data of another topic with the same name is deleted first.

        The file is not flushed. If a power cut loses it, the directory belongs to the topic of this name in the image.
        But if the partition is new, an existing directory belongs to another topic.
        """
        wanted = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n".encode()
        found = content(self._files, self._metadata_path(name))
        if found == wanted:
            return
        if is_new or (found is not None and _PARTITION_METADATA.fullmatch(found)):
            self._delete_old_data(name)
        self._files.mkdir(self._data.directory_of(name))
        self._write(self._metadata_path(name), wanted)

    def _metadata_path(self, name: TopicPartition) -> str:
        return f"{self._data.directory_of(name)}/{PARTITION_METADATA}"

    def _delete_old_data(self, name: TopicPartition) -> None:
        with suppress(FileNotFoundError):
            self._data.delete_log(name)
            log.info("%s held data of a deleted topic with the same name; that data is deleted now", name.directory)

    def _write(self, path: str, content: bytes) -> None:
        file = self._files.open(path)
        try:
            file.truncate(0)
            write_all(file, content, 0)
        finally:
            file.close()

    def _delete(self, gone: Mapping[TopicPartition, PartitionImage]) -> None:
        """Stop serving partitions, and delete their directories. If a deletion fails, the next start repeats it."""
        here = [name for name in gone if name in self._partitions or name in self._failed]
        if not here:
            return
        for name in here:
            self._failed.pop(name, None)
            partition = self._partitions.pop(name, None)
            if partition is not None:
                partition.is_deleted = True
                self._on_changed(name, gone[name], None)
        for name, error in self._data.delete_logs(here).items():
            log.error("%s could not be deleted: %s", name.directory, error)
        for name in here:
            # Requests that wait for the partition's records are answered with an error.
            wake_all(self._wake, name)

    def _configure(self) -> None:
        configs: dict[str, TopicConfig] = {}
        for name, partition in self._partitions.items():
            if name.topic not in configs:
                configs[name.topic] = self._topic_config(self.image, name.topic)
            partition.configure(configs[name.topic])


def _same_topic(topic: TopicImage, image: Image) -> Mapping[int, PartitionImage]:
    """The partitions of this topic in an image. A topic of the same name with another id does not count."""
    found = image.topics.get(topic.name)
    return found.partitions if found is not None and found.topic_id == topic.topic_id else {}
