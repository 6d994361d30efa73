"""AlterPartition (key 56): a leader asks the controller to change its ISR (KIP-497). A pure module.

It is compare-and-set: `leader_epoch` and `partition_epoch` must be the controller's current values. Version 2 names
topics by id and has separate errors for a replica that may not join and for a leader that was deposed (KIP-841).
Version 3 has the broker epoch of each replica of the new ISR, so that a replica that has restarted since is refused
(KIP-903). Only brokers send it.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int8, int16, int32, int64, uuid
from minibroker.wire.uuids import NO_UUID


class BrokerState(Struct):
    """One replica of the new ISR."""

    broker_id: int = int32(versions="3+", about="the broker")
    broker_epoch: int = int64(
        versions="3+", default=-1, about="the replica's broker epoch, as the leader knows it; -1: do not check"
    )


class PartitionAlteration(Struct):
    """The ISR that a leader wants for one partition."""

    partition_index: int = int32(about="the partition")
    leader_epoch: int = int32(about="the leader epoch of the sender")
    new_isr: list[int] = array(int32, versions="0-2", default=(), about="the new ISR, in older versions")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, versions="3+", default=(), about="the new ISR")
    leader_recovery_state: int = int8(
        versions="1+", default=0, about="1 while the leader recovers from an unclean election (KIP-704)"
    )
    partition_epoch: int = int32(about="the partition epoch that the leader's change is based on")


class TopicAlteration(Struct):
    """One topic whose partitions are to be altered."""

    topic_id: bytes = uuid(versions="2+", default=NO_UUID, ignorable=True, about="the topic's id")
    partitions: list[PartitionAlteration] = array(PartitionAlteration, about="the topic's partitions")


class AlterPartitionRequest(Request, key=56, versions="2-3", flexible="0+"):
    """A leader asks to change the ISR of its partitions."""

    broker_id: int = int32(about="the broker that asks")
    broker_epoch: int = int64(default=-1, about="the broker epoch of the sender")
    topics: list[TopicAlteration] = array(TopicAlteration, about="the topics")


class PartitionAltered(Struct):
    """The result for one partition, and its present state."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why the partition was not altered")
    leader_id: int = int32(default=0, about="the leader's node id, -1 if there is none")
    leader_epoch: int = int32(default=0, about="the leader epoch")
    isr: list[int] = array(int32, default=(), about="the ISR")
    leader_recovery_state: int = int8(
        versions="1+",
        default=0,
        ignorable=True,
        about="1 while the leader recovers from an unclean election, or else 0",
    )
    partition_epoch: int = int32(default=0, about="the partition epoch")


class TopicAltered(Struct):
    """The results for the partitions of one topic."""

    topic_id: bytes = uuid(versions="2+", default=NO_UUID, ignorable=True, about="the topic's id")
    partitions: list[PartitionAltered] = array(PartitionAltered, about="the topic's partitions")


class AlterPartitionResponse(Response, key=56, versions="2-3", flexible="0+"):
    """The result for each partition."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the sender, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the whole request was refused: STALE_BROKER_EPOCH and the like")
    topics: list[TopicAltered] = array(TopicAltered, default=(), about="one entry for each topic")


declare(AlterPartitionRequest, AlterPartitionResponse)
