"""Show the records of `__consumer_offsets` in a data directory: the state of groups and their committed offsets.

    python chapters/06-groups-offsets/examples/offsets_log.py data/1 shop
    python chapters/06-groups-offsets/examples/offsets_log.py data/1 shop --bytes

It reads the partition to which the group's id hashes, also of a running node, and shows the records of this group.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from minibroker.coordinators.placing import partition_of
from minibroker.groups.records import GroupKey, GroupRecord, GroupValue, decode
from minibroker.log.batch import batches
from minibroker.log.record import Record

PARTITIONS = 50
LEFT_OUT = {
    "group_id",
    "commit_timestamp",
    "current_state_timestamp",
    "assignment_timestamp",
    "client_host",
    "timestamp",
}


def fields_of(message: GroupKey | GroupValue) -> str:
    """The fields of a key or a value. Times, ids and defaults are left out; bytes and lists are counted."""
    shown = []
    for field in message.schema.fields:
        value = getattr(message, field.name)
        if field.name in LEFT_OUT or field.kind == "uuid" or value == field.default:
            continue
        shown.append(f"{field.name}={len(value) if isinstance(value, list) else value}")
    return " ".join(shown)


def text_of(record: GroupRecord) -> str:
    """A record as one line."""
    name = type(record.key).__name__.removesuffix("Key")
    value = "tombstone" if record.value is None else fields_of(record.value)
    return " ".join(part for part in (name, fields_of(record.key), "->", value) if part)


def records_of(folder: Path) -> Iterator[Record]:
    """All records of a partition, in order."""
    for segment in sorted(folder.glob("*.log")):
        for batch in batches(segment.read_bytes()):
            yield from batch.records()


def main(folder: str, group_id: str, *options: str) -> None:
    """Show one partition."""
    partition = partition_of(group_id, PARTITIONS)
    print(f"__consumer_offsets-{partition}")
    for record in records_of(Path(folder) / f"__consumer_offsets-{partition}"):
        found = decode(record.key or b"", record.value)
        if found is None or found.key.group_id != group_id:
            continue
        print(f"{record.offset:3}  {text_of(found)}")
        if "--bytes" in options:
            print(f"     key    {(record.key or b'').hex(' ')}\n     value  {(record.value or b'').hex(' ')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
