"""The metadata records of the controller, which fence, unfence and remove brokers. A pure module.

Importing this module declares these records, and the records of replication, to the metadata log and to the image.
"""

from dataclasses import replace

from minibroker.metadata.errors import CorruptMetadata
from minibroker.metadata.image import BrokerImage, Builder, declare_record
from minibroker.metadata.records import MetadataRecord
from minibroker.replication.records import PartitionChangeRecord
from minibroker.wire.schema import array, int8, int32, int64, uuid

__all__ = ["BrokerRegistrationChangeRecord", "NoOpRecord", "PartitionChangeRecord", "UnregisterBrokerRecord"]


class UnregisterBrokerRecord(MetadataRecord, key=1, versions="0", flexible="0+"):
    """A broker is removed from the cluster."""

    broker_id: int = int32()
    broker_epoch: int = int64(about="the epoch of the registration")


class BrokerRegistrationChangeRecord(MetadataRecord, key=17, versions="0-2", flexible="0+"):
    """A registered broker is fenced or unfenced, or begins a controlled shutdown. Unchanged fields are left out."""

    broker_id: int = int32()
    broker_epoch: int = int64(about="the epoch of the registration")
    fenced: int = int8(tag=0, default=0, about="1 fenced, -1 unfenced, 0 no change")
    in_controlled_shutdown: int = int8(versions="1+", tag=1, default=0, about="1 shutting down, 0 no change")
    log_dirs: list[bytes] = array(uuid, versions="2+", tag=2, default=(), about="the data directories, if they changed")


class NoOpRecord(MetadataRecord, key=20, versions="0", flexible="0+"):
    """A record without content and without effect. Kafka's controller writes it to advance the log."""


def _broker(builder: Builder, broker_id: int, broker_epoch: int) -> BrokerImage:
    broker: BrokerImage | None = builder.now("brokers").get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        known = "no broker" if broker is None else f"epoch {broker.epoch}"
        raise CorruptMetadata(f"a record is for broker {broker_id}, epoch {broker_epoch}, but the image has {known}")
    return broker


def _on_unregister_broker(builder: Builder, record: UnregisterBrokerRecord) -> None:
    """Remove the broker."""
    _broker(builder, record.broker_id, record.broker_epoch)
    del builder.change("brokers")[record.broker_id]


def _on_broker_registration_change(builder: Builder, record: BrokerRegistrationChangeRecord) -> None:
    """Change the state of the broker."""
    broker = _broker(builder, record.broker_id, record.broker_epoch)
    builder.change("brokers")[record.broker_id] = replace(
        broker,
        is_fenced=broker.is_fenced if record.fenced == 0 else record.fenced > 0,
        in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown > 0,
        log_dirs=tuple(record.log_dirs) or broker.log_dirs,
        fenced_offset=builder.offset if record.fenced > 0 else broker.fenced_offset,
    )


def _on_no_op(builder: Builder, record: NoOpRecord) -> None:
    """Change nothing."""


declare_record(UnregisterBrokerRecord, _on_unregister_broker)
declare_record(BrokerRegistrationChangeRecord, _on_broker_registration_change, version=1)
declare_record(NoOpRecord, _on_no_op)
