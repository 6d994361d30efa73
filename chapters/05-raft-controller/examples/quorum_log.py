"""Show the log of the quorum: control records and metadata records.

    python chapters/05-raft-controller/examples/quorum_log.py data/cluster/node1

It reads `__cluster_metadata-0`, also of a running node. Ids and fields with their default value are left out. The last
records of a log need not be committed yet.
"""

import sys
from pathlib import Path

import minibroker.controller.records  # noqa: F401 - later chapters' records, for their lessons
from minibroker.log.batch import Batch, batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.record import Record
from minibroker.metadata.records import decode_record
from minibroker.raft.control import decode_leader_change
from minibroker.raft.voters import decode_voters
from minibroker.wire.schema import Message


def fields_of(message: Message) -> str:
    """The fields of a record, without ids and defaults."""
    fields = [(field, getattr(message, field.name)) for field in message.schema.fields]
    told = [(it, value) for it, value in fields if value not in (it.default, []) and it.kind != "uuid"]
    return "  ".join(f"{it.name}={value}" for it, value in told if it.kind != "struct" and "endpoint" not in it.name)


def control(record: Record) -> str:
    """A control record."""
    value = record.value or b""
    if control_type(record) == ControlType.KRAFT_VOTERS:
        return f"Voters  {list(decode_voters(value))}"
    change = decode_leader_change(value)
    granting = [it.voter_id for it in change.granting_voters]
    return f"LeaderChange  leader={change.leader_id}  granting={granting}"


def shown(batch: Batch, record: Record) -> str:
    """A record as text."""
    if batch.header.is_control:
        return control(record)
    decoded = decode_record(record.value or b"")
    return f"{type(decoded).__name__}  {fields_of(decoded)}"


if __name__ == "__main__":
    for segment in sorted((Path(sys.argv[1]) / "__cluster_metadata-0").glob("*.log")):
        for batch in batches(segment.read_bytes()):
            print(f"epoch {batch.header.leader_epoch}, batch of {batch.header.record_count}")
            for record in batch.records():
                print(f"  {record.offset:3}  {shown(batch, record)}"[:118])
