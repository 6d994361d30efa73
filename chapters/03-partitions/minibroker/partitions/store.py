"""The partitions of this node: what the image says, as logs on a disk.

The image is the truth, the directories follow it. A topic that appears in the image gets its directories; one that is
gone loses them; a configuration that changes reaches the logs. After a crash in between, the next start does the rest:
each directory holds the id of its topic in `partition.metadata`, so the data of a topic that was deleted is never taken
for that of another with the same name. Data that no metadata speaks of is never deleted, but set aside.

What a partition is can be replaced: `open_partition` opens it, and `on_changed` tells what the image says of it from
then on. The metadata log itself is no topic of the image; its owner adds it as an internal partition, for other nodes
alone, and answers their fetches.
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
from minibroker.partitions.partition import LocalPartition, SoleReplica
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

# Opens a partition of this node: its name, its topic's id, what the image says of it, its topic's configuration.
OpenPartition = Callable[[TopicPartition, bytes, PartitionImage, TopicConfig], LocalPartition]
# What the image said of an open partition of this node, and what it says now: None before it came, or now it is gone.
OnChanged = Callable[[TopicPartition, PartitionImage | None, PartitionImage | None], None]


class Store:
    """The partitions of one node; what handlers know as `Routes`."""

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
        """The partition, if it is on this node."""
        # What TopicPartition(…) does, without a second call: every produce and fetch passes here.
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
        """The topic that has this id."""
        name = self.image.topic_names.get(topic_id)
        if name is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_text(topic_id)}")
        return name

    def leader(self, name: TopicPartition) -> Leader | None:
        """Who leads a partition, as far as this node knows."""
        partition = self.image.partition(name)
        broker = self.image.brokers.get(partition.leader) if partition is not None else None
        if partition is None or broker is None or broker.is_fenced:
            return None
        return Leader(broker.node_id, partition.leader_epoch, broker.host, broker.port, broker.rack)

    @property
    def internal(self) -> Mapping[bytes, Serve]:
        """What answers the fetches of each internal partition, by its id."""
        return self._internal

    def add_internal(self, topic_id: bytes, serve: Serve) -> None:
        """Let other nodes, and no client, fetch a log that is in no image: `serve` answers."""
        self._internal[topic_id] = serve

    @property
    def image(self) -> Image:
        """The image that the directories follow."""
        if self._image is None:
            raise Disconnect("this node is not part of its cluster yet")
        return self._image

    def __iter__(self) -> Iterator[LocalPartition]:
        return iter(list(self._partitions.values()))

    def logs(self) -> Iterable[tuple[TopicPartition, SegmentedLog]]:
        """Every log with its name."""
        return [(name, partition.log) for name, partition in sorted(self._partitions.items())]

    # Following the image ----------------------------------------------------------------------------------------------

    def follow(self, old: Image, new: Image) -> None:
        """Make the directories what the image says. Topics that did not change are the same objects in both."""
        self._image = new
        gone: dict[TopicPartition, PartitionImage] = {}
        for topic in old.topics.values():
            if new.topics.get(topic.name) is not topic:
                gone |= self._only_in(topic, new)
        self._delete(gone)
        for topic in new.topics.values():
            if old.topics.get(topic.name) is not topic:
                self._open(topic, self._only_in(topic, old), is_new=True)
                self._tell(topic, _same_topic(topic, old))
        if new.configs is not old.configs:
            self._configure()

    def _only_in(self, topic: TopicImage, other: Image) -> dict[TopicPartition, PartitionImage]:
        """The partitions of a topic that are on this node by its image, and by the other are not."""
        others = _same_topic(topic, other)
        return {
            TopicPartition(topic.name, index): partition
            for index, partition in topic.partitions.items()
            if others.get(index) is not partition and self._is_here(partition) and not self._is_here(others.get(index))
        }

    def _is_here(self, partition: PartitionImage | None) -> bool:
        return partition is not None and self._node_id in partition.replicas

    def _tell(self, topic: TopicImage, before: Mapping[int, PartitionImage]) -> None:
        """Tell the partitions that were here before, and still are, what is different."""
        for index, partition in topic.partitions.items():
            old = before.get(index)
            if old is partition or not self._is_here(old):
                continue
            name = TopicPartition(topic.name, index)
            if name in self._partitions:
                self._on_changed(name, old, partition)

    def start(self, image: Image, *, removed_topics: Callable[[], Collection[bytes]] = frozenset) -> None:
        """Open what the image says is here, and put away what is here beside it."""
        self.begin(image)
        for _name in self.put_away(removed_topics):
            pass

    def begin(self, image: Image) -> None:
        """Open what the image says is here."""
        self._image = image
        for topic in image.topics.values():
            self._open(topic, self._only_in(topic, Image()), is_new=False)
        for name, offset in self._data.missing.items():
            if name in self._partitions:
                log.error("%s: its directory was gone, with records up to %d; it begins anew", name.directory, offset)

    def put_away(self, removed_topics: Callable[[], Collection[bytes]]) -> Iterator[TopicPartition]:
        """Put away what is here and the image does not know: one directory for each step, for there may be thousands.

        `removed_topics` are the ids of topics of which the metadata say that they were deleted: a crash has kept us
        from removing their directories, or we were away. Others nobody knows of, so they are set aside and kept.
        """
        left = [name for name in self._data.partitions() if self._is_left(name)]
        removed = removed_topics() if left else ()
        for name in left:
            # It may have come back between two steps, and then it is in use.
            if self._is_left(name):
                self._put_away(name, removed)
            yield name

    def _is_left(self, name: TopicPartition) -> bool:
        return name != METADATA and not self._is_here(self.image.partition(name))

    def _put_away(self, name: TopicPartition, removed: Collection[bytes]) -> None:
        match = _PARTITION_METADATA.fullmatch(content(self._files, self._metadata_path(name)) or b"")
        try:
            if match is not None and parse_uuid(match[1].decode()) in removed:
                self._data.delete_log(name)
            else:
                aside = self._data.set_aside(name)
                known = "knows no such partition" if self.image.partition(name) is None else "has it on other nodes"
                log.warning("%s: the metadata %s; it is now %s", name.directory, known, aside)
        except FileNotFoundError:
            # It came back between two steps, and was deleted.
            pass
        except OSError as error:
            log.error("%s could not be put away: %s", name.directory, error)

    def _open(self, topic: TopicImage, come: Mapping[TopicPartition, PartitionImage], *, is_new: bool) -> None:
        """Open partitions of a topic. One whose files cannot be read is offline, and the others are not."""
        if not come:
            return
        config = self._topic_config(self.image, topic.name)
        for name, partition in come.items():
            try:
                self._claim(name, topic.topic_id, is_new=is_new)
                self._partitions[name] = self._open_partition(name, topic.topic_id, partition, config)
                self._failed.pop(name, None)
            except (LogError, OSError) as error:
                log.error("%s is offline: %s", name.directory, error)
                self._failed[name] = str(error)
            else:
                self._on_changed(name, None, partition)
            self._wake(name)

    def _open_local(
        self, name: TopicPartition, _topic_id: bytes, partition: PartitionImage, config: TopicConfig
    ) -> LocalPartition:
        producers = ProducerStates(self._files, self._data.directory_of(name))
        opened = self._data.open_log(name, config.log_config, companions=[producers])
        replica = SoleReplica(name, opened, leader_epoch=partition.leader_epoch, wake=self._wake)
        return LocalPartition(name, opened, producers, config, replica)

    def _claim(self, name: TopicPartition, topic_id: bytes, *, is_new: bool) -> None:
        """Write down whose directory this is, after what a topic of the same name has left in it was removed.

        The note is not flushed. If a power cut takes it, the directory belongs to the topic that the image knows by
        this name; and when a partition is new, whatever stands in its place belongs to another.
        """
        wanted = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n".encode()
        found = content(self._files, self._metadata_path(name))
        if found == wanted:
            return
        if is_new or (found is not None and _PARTITION_METADATA.fullmatch(found)):
            self._remove_leftovers(name)
        self._files.mkdir(self._data.directory_of(name))
        self._write(self._metadata_path(name), wanted)

    def _metadata_path(self, name: TopicPartition) -> str:
        return f"{self._data.directory_of(name)}/{PARTITION_METADATA}"

    def _remove_leftovers(self, name: TopicPartition) -> None:
        with suppress(FileNotFoundError):
            self._data.delete_log(name)
            log.warning("%s held another topic's data, which is deleted", name.directory)

    def _write(self, path: str, content: bytes) -> None:
        file = self._files.open(path)
        try:
            file.truncate(0)
            write_all(file, content, 0)
        finally:
            file.close()

    def _delete(self, gone: Mapping[TopicPartition, PartitionImage]) -> None:
        """Serve partitions no more, and remove what can be removed; the next start tries the rest again."""
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
            # Those who wait for its records learn that there are none to come.
            self._wake(name)

    def _configure(self) -> None:
        configs: dict[str, TopicConfig] = {}
        for name, partition in self._partitions.items():
            if name.topic not in configs:
                configs[name.topic] = self._topic_config(self.image, name.topic)
            partition.configure(configs[name.topic])


def _same_topic(topic: TopicImage, image: Image) -> Mapping[int, PartitionImage]:
    """The partitions that an image has of this very topic; one of the same name with another id is another topic."""
    found = image.topics.get(topic.name)
    return found.partitions if found is not None and found.topic_id == topic.topic_id else {}
