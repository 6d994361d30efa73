"""Eligible leader replicas (KIP-966): replicas outside the in-sync set that may lead without a loss. A pure module.

With fewer replicas in sync than `min.insync.replicas`, the high watermark stands still. So if too few members remain
when a replica leaves the in-sync set, that replica has every acknowledged record until the set is large enough again.
The controller remembers such replicas in the metadata:

    min.insync.replicas 2          in sync      eligible
    all are in sync                1, 2, 3
    1 leaves                       2, 3                     the high watermark moves: 1 may lack records
    2 leaves                       3            2           the high watermark stands still: 2 lacks nothing
    3 leaves                                    2, 3        the first of them that is live will lead
    2 leads                        2            3
    1 has caught up                2, 1                     the high watermark moves again

A replica that may have lost records leaves both lists. If both are empty, only an unclean election can elect a leader.
The metadata name the last leader then, in `last_known_elr`.

The number of replicas that must be in sync comes from the metadata alone, and never from the file of one broker: if the
controller assumed a larger number than the leader, it would remember replicas that lack records.
"""

from collections.abc import Collection, Sequence

from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage, fold_all
from minibroker.metadata.records import ConfigRecord, MetadataRecord
from minibroker.replication.keys import MIN_INSYNC_REPLICAS
from minibroker.replication.records import NO_LEADER_CHANGE, PartitionChangeRecord

ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"
ELIGIBLE_LEADER_REPLICAS_LEVEL = 1


def is_enabled(image: Image) -> bool:
    """Whether the cluster keeps eligible leader replicas. A feature level in the metadata says so."""
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= ELIGIBLE_LEADER_REPLICAS_LEVEL


def min_isr(image: Image, topic: str, replica_count: int) -> int:
    """A lower bound: a partition's leader demands at least this many in-sync replicas to move its high watermark."""
    own = image.topic_configs(topic).get(MIN_INSYNC_REPLICAS.name)
    if own is not None:
        return min(MIN_INSYNC_REPLICAS.parse(own), replica_count)
    # Without a value of its own, a topic has the value of the broker that leads it, or else of the whole cluster. The
    # smallest of them is safe. Without a value for the whole cluster, a broker may have any value in its file.
    for_all = _broker_value(image, "")
    if for_all is None:
        return 1
    values = [_broker_value(image, str(it)) for it in image.brokers]
    return min(replica_count, for_all, *(it for it in values if it is not None))


def _broker_value(image: Image, resource: str) -> int | None:
    """The value that is set for one broker, or for all brokers if `resource` is empty."""
    text = image.configs.get((ConfigResource.BROKER, resource), {}).get(MIN_INSYNC_REPLICAS.name)
    return None if text is None else MIN_INSYNC_REPLICAS.parse(text)


def may_lead(partition: PartitionImage, live: Collection[int]) -> list[int]:
    """The live replicas that may lead without a loss, in order: those in sync or, if there are none, those eligible."""
    replicas = [it for it in partition.replicas if it in live]
    in_sync = [it for it in replicas if it in partition.isr]
    return in_sync or [it for it in replicas if it in partition.eligible_leader_replicas]


def with_eligible(
    change: PartitionChangeRecord,
    image: Image,
    topic: str,
    partition: PartitionImage,
    *,
    live: Collection[int],
    lost: Collection[int] = (),
) -> PartitionChangeRecord:
    """Complete a change of a partition: set its eligible replicas, and its leader if no replica is in sync.

    `live` are the brokers that may lead, and `lost` the brokers that may have lost records.
    """
    if not is_enabled(image):
        return change
    replicas = partition.replicas if change.replicas is None else change.replicas
    isr = list(partition.isr) if change.isr is None else change.isr
    is_unclean = change.leader >= 0 and change.leader not in (*partition.isr, *partition.eligible_leader_replicas)
    # While the in-sync set is too small, the members that leave it become eligible, and those that were eligible stay
    # so. After an unclean election no replica is eligible, because its records may differ from the new leader's.
    eligible: list[int] = []
    if len(isr) < min_isr(image, topic, len(replicas)) and not is_unclean:
        known = {*partition.isr, *partition.eligible_leader_replicas} - {*isr, *lost}
        eligible = [it for it in replicas if it in known]
    # If no replica is in sync, an eligible one leads, as the only one in sync: no other is known to have its records.
    chosen = next((it for it in eligible if it in live), None)
    if not isr and _leader_after(change, partition) == NO_LEADER and chosen is not None:
        change.leader, isr = chosen, [chosen]
        eligible.remove(chosen)
    if isr != list(partition.isr):
        change.isr = isr
    _name_eligible(change, partition, eligible)
    return change


def _leader_after(change: PartitionChangeRecord, partition: PartitionImage) -> int:
    return partition.leader if change.leader == NO_LEADER_CHANGE else change.leader


def _name_eligible(change: PartitionChangeRecord, partition: PartitionImage, eligible: list[int]) -> None:
    old = list(partition.eligible_leader_replicas)
    # A record that changes the in-sync set must name the eligible replicas, even if they stay the same. Readers drop
    # them otherwise: a record without them may come from an older program, which does not know them (`after_change`).
    is_named = eligible != old or (bool(old) and change.isr is not None)
    change.eligible_leader_replicas = eligible if is_named else None
    # The last leader is remembered from the time at which no replica is in sync until there is a leader again.
    if change.isr == [] and partition.leader >= 0:
        change.last_known_elr = [partition.leader]
    elif _leader_after(change, partition) >= 0 and partition.last_known_elr:
        change.last_known_elr = []


def changes_of_min_isr(image: Image, records: Sequence[MetadataRecord]) -> list[PartitionChangeRecord]:
    """The changes of partitions that must follow these records, if the records change `min.insync.replicas`.

    A partition without a leader has no high watermark that could move, so it stays as it is.
    """
    if not any(isinstance(it, ConfigRecord) and it.name == MIN_INSYNC_REPLICAS.name for it in records):
        return []
    after = fold_all(image, enumerate(records, start=image.offset + 1))
    changes = (
        _change_of_min_isr(image, after, topic, number, partition)
        for topic in after.topics.values()
        if topic.name in image.topics
        for number, partition in topic.partitions.items()
        if partition.leader >= 0
    )
    return [it for it in changes if it is not None]


def _change_of_min_isr(
    before: Image, after: Image, topic: TopicImage, number: int, partition: PartitionImage
) -> PartitionChangeRecord | None:
    old, new = (min_isr(it, topic.name, len(partition.replicas)) for it in (before, after))
    change = PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id)
    # If the in-sync set is large enough now, the high watermark moves, and no other replica is eligible.
    if partition.eligible_leader_replicas and len(partition.isr) >= new:
        change.eligible_leader_replicas = []
        return change
    # Until the leader has read the larger number, its high watermark moves with fewer replicas in sync, and a member
    # that it removes may lack records. A new partition epoch lets the controller refuse such a removal.
    if is_enabled(after) and new > old and len(partition.isr) > 1:
        change.isr = list(partition.isr)
        _name_eligible(change, partition, list(partition.eligible_leader_replicas))
        return change
    return None
