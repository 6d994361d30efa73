"""Answers a query over the topics and groups of a cluster, for `minibroker sql`.

The tables are built in memory, and SQLite runs the query on them. An authorizer refuses every statement that does
anything but read these tables, such as one that writes, opens a file or changes a setting.
"""

import contextlib
import csv
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import click

from minibroker.cli.connecting import connected
from minibroker.cli.tables import echo_json, table_text
from minibroker.clients import admin, group_admin
from minibroker.clients.admin import ResourceType
from minibroker.clients.blocking import Client
from minibroker.segments.checkpoint import TopicPartition

SCHEMA = {
    "Topic": ("id", "name", "partition_count", "replication_factor", "retention_ms"),
    "ConsumerGroup": ("id", "group_id", "protocol"),
    "PartitionAssignment": ("group_id", "topic", "partition", "consumer_id", "offset"),
}
NAMED = "; ".join(f"{table} ({', '.join(columns)})" for table, columns in SCHEMA.items())

_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
_INTERRUPTIBLE_STEPS = 100_000  # steps of SQLite between two checks for Ctrl-C
Row = Sequence[object]


def run(bootstrap: str, query: str, format_: str) -> None:
    """Run one query, and print its rows."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.set_progress_handler(lambda: 0, _INTERRUPTIBLE_STEPS)
        for table, columns in SCHEMA.items():
            database.execute(f"create table {table} ({', '.join(map(_quoted, columns))})")
        wanted = _tables_of(database, query)
        with connected(bootstrap) as client:
            _fill(database, client, wanted)
        names, rows = _answer(database, query, wanted)
    _print(names, rows, format_)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _tables_of(database: sqlite3.Connection, query: str) -> set[str]:
    """The tables that a query reads. SQLite only plans the query to find them, so no broker is needed yet."""
    read: set[str] = set()
    _answer(database, f"explain {query}", read)
    return read


def _authorizer(read: set[str]) -> Callable[..., int]:
    def allow(action: int, table: str | None, *_more: str | None) -> int:
        # If no column is read, as in count(*), SQLite passes the table's name as the query spells it, such as TOPIC.
        if action == sqlite3.SQLITE_READ and table is not None:
            read.update(name for name in SCHEMA if name.lower() == table.lower())
        return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY

    return allow


def _answer(database: sqlite3.Connection, query: str, read: set[str]) -> tuple[list[str], list[Row]]:
    """The names of the columns, and the rows. The authorizer checks every statement of the user here."""
    database.set_authorizer(_authorizer(read))
    try:
        cursor = database.execute(query)
        return [it[0] for it in cursor.description or ()], cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _refusal(error) from error
    finally:
        database.set_authorizer(None)


def _refusal(error: Exception) -> click.ClickException:
    text = str(error).replace("\n", " ")
    if any(word in text for word in ("not authorized", "authorization denied", "prohibited")):
        return click.ClickException(f"only a select from these tables is allowed ({text}): {NAMED}")
    if "one statement" in text:
        return click.ClickException("give one select statement; this is more than one")
    return click.ClickException(f"{text}; the tables are {NAMED}")


# The tables ---------------------------------------------------------------------------------------------------------


def _fill(database: sqlite3.Connection, client: Client, wanted: set[str]) -> None:
    """Fill the tables that a query reads."""
    if "Topic" in wanted:
        _insert(database, "Topic", _topics(client))
    groups = group_admin.describe_all(client) if wanted & {"ConsumerGroup", "PartitionAssignment"} else []
    if "ConsumerGroup" in wanted:
        rows = ((number, it.group_id, it.assignor or None) for number, it in enumerate(groups, start=1))
        _insert(database, "ConsumerGroup", rows)
    if "PartitionAssignment" in wanted:
        committed = group_admin.committed_offsets_of_all(client, groups)
        _insert(
            database,
            "PartitionAssignment",
            (row for it in groups for row in _assignments(it, committed[it.group_id])),
        )


def _insert(database: sqlite3.Connection, table: str, rows: Iterable[Row]) -> None:
    marks = ", ".join("?" for _column in SCHEMA[table])
    database.executemany(f"insert into {table} values ({marks})", rows)


def _topics(client: Client) -> list[Row]:
    topics = [it for it in admin.describe_topics(client).values() if not it.is_internal]
    topics.sort(key=lambda it: it.name)
    configs = admin.describe_configs(client, ResourceType.TOPIC, [it.name for it in topics], keys=["retention.ms"])
    return [
        (
            number,
            it.name,
            len(it.partitions),
            max((len(one.replicas) for one in it.partitions), default=0),
            int(configs[it.name]["retention.ms"].value or 0),
        )
        for number, it in enumerate(topics, start=1)
    ]


def _assignments(group: group_admin.GroupDescription, committed: Mapping[TopicPartition, int]) -> list[Row]:
    owners = {partition: it.member_id for it in group.members for partition in it.partitions}
    return [(group.group_id, *it, owners.get(it), committed.get(it)) for it in sorted({*owners, *committed})]


# Output -------------------------------------------------------------------------------------------------------------


def _print(names: Sequence[str], rows: Sequence[Row], format_: str) -> None:
    if format_ == "json":
        echo_json([dict(zip(names, map(_json_value, row), strict=True)) for row in rows])
    elif format_ == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    else:
        click.echo(table_text(names, [["null" if it is None else it for it in row] for row in rows]))


def _json_value(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
