"""Print the metadata log of a broker, record by record.

    python chapters/03-partitions/examples/metadata.py data

It reads the first segment of `__cluster_metadata-0`. The broker may run meanwhile. Ids, and fields with their default
value, are left out.
"""

import sys
from pathlib import Path

import minibroker.controller.records  # noqa: F401 - later chapters' records, for their lessons
from minibroker.log.batch import batches
from minibroker.metadata.records import MetadataRecord, decode_record

SEGMENT = "__cluster_metadata-0/00000000000000000000.log"


def described(record: MetadataRecord) -> str:
    """The kind of a record, and its fields."""
    fields = [(field, getattr(record, field.name)) for field in record.schema.fields]
    told = [f"{it.name}={value}" for it, value in fields if value not in (it.default, []) and it.kind != "uuid"]
    return f"{type(record).__name__}  {'  '.join(told)}"


if __name__ == "__main__":
    for batch in batches((Path(sys.argv[1]) / SEGMENT).read_bytes()):
        print(f"batch of {batch.header.record_count}")
        for entry in batch.records():
            print(f"  {entry.offset:2}  {described(decode_record(entry.value or b''))}")
