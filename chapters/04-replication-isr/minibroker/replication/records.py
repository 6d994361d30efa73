"""The metadata record of a partition that gets another leader or another in-sync set. A pure module.

Importing this module makes the record known to the metadata log and to the image.
"""

from minibroker.metadata.errors import CorruptMetadata
from minibroker.metadata.image import Builder, PartitionImage, declare_record
from minibroker.metadata.records import MetadataRecord
from minibroker.wire.schema import array, int8, int32, uuid

# These values mean that the leader or its recovery state does not change.
NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1


class PartitionChangeRecord(MetadataRecord, key=5, versions="0-2", flexible="0+"):
    """A partition changes. Fields that do not change are left out; `after_change` derives the epochs."""

    partition_id: int = int32(default=-1, about="the partition's number in the topic")
    topic_id: bytes = uuid(about="the topic")
    isr: list[int] | None = array(int32, nullable="0+", tag=0, default=None, about="the new in-sync set")
    leader: int = int32(
        tag=1,
        default=NO_LEADER_CHANGE,
        about="the new leader, -1 for none; if this is set, a new leader epoch begins, even with the same leader",
    )
    replicas: list[int] | None = array(int32, nullable="0+", tag=2, default=None, about="the new replicas")
    removing_replicas: list[int] | None = array(
        int32, nullable="0+", tag=3, default=None, about="the replicas that a reassignment removes"
    )
    adding_replicas: list[int] | None = array(
        int32, nullable="0+", tag=4, default=None, about="the replicas that a reassignment adds"
    )
    leader_recovery_state: int = int8(
        tag=5, default=NO_RECOVERY_CHANGE, about="1 after an unclean election, 0 when the leader has recovered"
    )
    eligible_leader_replicas: list[int] | None = array(
        int32, versions="2+", nullable="2+", tag=6, default=None, about="replicas outside the ISR that may lead"
    )
    last_known_elr: list[int] | None = array(
        int32, versions="2+", nullable="2+", tag=7, default=None, about="the last known eligible leader replicas"
    )
    directories: list[bytes] | None = array(
        uuid, versions="1+", nullable="1+", tag=8, default=None, about="the data directory of each replica"
    )


def after_change(partition: PartitionImage, change: PartitionChangeRecord) -> PartitionImage:
    """The partition after a change, with a new leader epoch if the change names a leader, and a new partition epoch."""
    is_led_anew = change.leader != NO_LEADER_CHANGE
    is_recovery_changed = change.leader_recovery_state != NO_RECOVERY_CHANGE
    return PartitionImage(
        replicas=_kept(partition.replicas, change.replicas),
        isr=_kept(partition.isr, change.isr),
        leader=change.leader if is_led_anew else partition.leader,
        leader_epoch=partition.leader_epoch + is_led_anew,
        partition_epoch=partition.partition_epoch + 1,
        adding_replicas=_kept(partition.adding_replicas, change.adding_replicas),
        removing_replicas=_kept(partition.removing_replicas, change.removing_replicas),
        leader_recovery_state=change.leader_recovery_state if is_recovery_changed else partition.leader_recovery_state,
        eligible_leader_replicas=_eligible_after(partition, change),
        last_known_elr=_kept(partition.last_known_elr, change.last_known_elr),
    )


def _eligible_after(partition: PartitionImage, change: PartitionChangeRecord) -> tuple[int, ...]:
    # A program that does not know eligible leader replicas changes the in-sync set without naming them. Then they no
    # longer count, because they may lack records.
    is_outdated = change.eligible_leader_replicas is None and change.isr is not None
    return () if is_outdated else _kept(partition.eligible_leader_replicas, change.eligible_leader_replicas)


def _kept(old: tuple[int, ...], new: list[int] | None) -> tuple[int, ...]:
    return old if new is None else tuple(new)


def _on_partition_change(builder: Builder, record: PartitionChangeRecord) -> None:
    """Apply a change to the partition in the image."""
    topic = builder.topic(record.topic_id)
    partitions = builder.partitions_of(topic)
    old = partitions.get(record.partition_id)
    if old is None:
        raise CorruptMetadata(f"{topic.name} has no partition {record.partition_id}, it has {len(partitions)}")
    partitions[record.partition_id] = after_change(old, record)


declare_record(PartitionChangeRecord, _on_partition_change)
