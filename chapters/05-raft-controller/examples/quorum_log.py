"""Show the log of the quorum: what the quorum wrote for itself, and what the controller decided.

    python chapters/05-raft-controller/examples/quorum_log.py data/cluster/node1

It reads `__cluster_metadata-0`, which a running node does not mind. Ids, and fields that hold their default, are left
out. What stands at the end of a log need not be decided yet.
"""

import sys
from pathlib import Path

import minibroker.controller.records  # noqa: F401 - later chapters' records, for their lessons
from minibroker.log.batch import Batch, batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.record import Record
from minibroker.metadata.records import decode_record
from minibroker.raft.control import LeaderChangeMessage
from minibroker.raft.voters import decode_voters
from minibroker.wire.schema import Message


def fields_of(message: Message) -> str:
    """What a record says, without ids and defaults."""
    fields = [(field, getattr(message, field.name)) for field in message.schema.fields]
    told = [(it, value) for it, value in fields if value not in (it.default, []) and it.kind != "uuid"]
    return "  ".join(f"{it.name}={value}" for it, value in told if it.kind != "struct" and "endpoint" not in it.name)


def control(record: Record) -> str:
    """A record of the quorum's own."""
    value = record.value or b""
    if control_type(record) == ControlType.KRAFT_VOTERS:
        return f"Voters  {list(decode_voters(value))}"
    change, _end = LeaderChangeMessage.decode(memoryview(value), 0, 1)
    granting = [it.voter_id for it in change.granting_voters]
    return f"LeaderChange  leader={change.leader_id}  granting={granting}"


def shown(batch: Batch, record: Record) -> str:
    """Any record."""
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
