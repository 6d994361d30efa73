"""Lists, describes and aborts transactions, for `minibroker transactions`."""

import time
from collections.abc import Sequence
from typing import Any

import click

from minibroker.cli.connecting import connected, demand_topics, no_such_transaction
from minibroker.cli.tables import NOT_KNOWN, counted, echo_json, table_text
from minibroker.clients import transaction_admin
from minibroker.clients.blocking import Client
from minibroker.clients.transaction_admin import OpenTransaction, TransactionDescription
from minibroker.segments.checkpoint import TopicPartition

ONGOING = "Ongoing"
_LISTED = ("transactional_id", "state", "producer_id", "producer_epoch", "open_seconds", "coordinator")
_HANGING = ("topic", "partition", "producer_id", "producer_epoch", "start_offset", "idle_seconds")


def list_transactions(bootstrap: str, format_: str) -> None:
    """Show all transactional ids."""
    with connected(bootstrap) as client:
        rows = [_document(it) for it in transaction_admin.describe_all(client)]
    if format_ == "json":
        echo_json([{key: row[key] for key in _LISTED} for row in rows])
    else:
        titles = ["TRANSACTIONAL ID", "STATE", "PRODUCER", "EPOCH", "OPEN SECONDS", "COORDINATOR"]
        click.echo(table_text(titles, _cells(rows, _LISTED)))
        if not rows:
            click.echo("there are no transactional ids yet: a transactional producer creates one", err=True)


def describe(bootstrap: str, transactional_id: str, format_: str) -> None:
    """Show one transactional id and the partitions of its transaction."""
    with connected(bootstrap) as client:
        found = _document(_demand(client, transactional_id))
    if format_ == "json":
        echo_json(found)
        return
    opened = "" if found["open_seconds"] is None else f", open for {found['open_seconds']} s"
    click.echo(
        f"{transactional_id}: {found['state']}{opened}, timeout {found['timeout_ms']} ms, "
        f"producer {found['producer_id']} epoch {found['producer_epoch']}, coordinator {found['coordinator']}"
    )
    if found["partitions"]:
        rows = [[it["topic"], it["partition"]] for it in found["partitions"]]
        click.echo("\n" + table_text(["TOPIC", "PARTITION"], rows))


def _demand(client: Client, transactional_id: str) -> TransactionDescription:
    found = transaction_admin.describe_if_there(client, transactional_id)
    if found is None:
        known = [it.transactional_id for it in transaction_admin.list_transactions(client)]
        raise no_such_transaction(transactional_id, known)
    return found


def _document(it: TransactionDescription) -> dict[str, Any]:
    is_open = it.state == ONGOING and it.start_ms >= 0
    return {
        "transactional_id": it.transactional_id,
        "state": it.state,
        "producer_id": it.producer_id,
        "producer_epoch": it.producer_epoch,
        "open_seconds": _seconds_since(it.start_ms) if is_open else None,
        "timeout_ms": it.timeout_ms,
        "coordinator": it.coordinator,
        "partitions": [{"topic": one.topic, "partition": one.partition} for one in it.partitions],
    }


def _seconds_since(time_ms: int) -> float:
    return round(max(0.0, time.time() - time_ms / 1000), 1)


def _cells(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[list[Any]]:
    return [[NOT_KNOWN if row[key] is None else row[key] for key in keys] for row in rows]


# Hanging transactions -----------------------------------------------------------------------------------------------


def list_hanging(bootstrap: str, topic: str | None, seconds: float, format_: str) -> None:
    """Show the hanging transactions of one topic, or of all."""
    with connected(bootstrap) as client:
        found = _hanging(client, topic, seconds)
    _show(found, format_)
    if format_ == "table":
        hint = ": `minibroker transactions abort --hanging` ends them" if found else ""
        click.echo(f"{counted(len(found), 'hanging transaction')}{hint}", err=True)


def _hanging(client: Client, topic: str | None, seconds: float) -> list[OpenTransaction]:
    topics = client.metadata().topics if topic is None else demand_topics(client, [topic])
    # A partition without a leader cannot be asked, and nothing could be written there.
    partitions = [
        TopicPartition(one.name or "", it.partition_index)
        for one in topics
        for it in one.partitions
        if it.leader_id >= 0
    ]
    before_ms = (time.time() - seconds) * 1000
    return transaction_admin.hanging_transactions(client, partitions, before_ms=before_ms)


def _show(found: Sequence[OpenTransaction], format_: str) -> None:
    rows = [
        dict(
            zip(
                _HANGING,
                (*it.partition, it.producer_id, it.producer_epoch, it.start_offset, _seconds_since(it.last_ms)),
                strict=True,
            )
        )
        for it in found
    ]
    if format_ == "json":
        echo_json(rows)
    else:
        titles = ["TOPIC", "PARTITION", "PRODUCER", "EPOCH", "START OFFSET", "IDLE SECONDS"]
        click.echo(table_text(titles, _cells(rows, _HANGING)))


# Abort --------------------------------------------------------------------------------------------------------------


def abort_hanging(bootstrap: str, topic: str | None, seconds: float, *, is_dry_run: bool, format_: str) -> None:
    """Show the hanging transactions, and end them unless this is a dry run."""
    with connected(bootstrap) as client:
        found = _hanging(client, topic, seconds)
        _show(found, format_)
        if not is_dry_run:
            for it in found:
                transaction_admin.abort_hanging(client, it)
    if format_ == "table":
        outcome = "would be aborted; nothing was done, because of --dry-run" if is_dry_run else "aborted"
        click.echo(f"{counted(len(found), 'hanging transaction')} {outcome}", err=True)


def abort(bootstrap: str, transactional_id: str, *, is_dry_run: bool, format_: str) -> None:
    """Fence the producer of a transactional id, which aborts its open transaction, unless this is a dry run."""
    with connected(bootstrap) as client:
        found = _demand(client, transactional_id)
        if found.state != ONGOING:
            raise click.ClickException(f"{transactional_id} has no open transaction: its state is {found.state}")
        if not is_dry_run:
            transaction_admin.fence(client, transactional_id)
    if format_ == "json":
        echo_json(_document(found))
    else:
        count = counted(len(found.partitions), "partition")
        outcome = "would be aborted" if is_dry_run else "aborted, and its producer is fenced"
        click.echo(f"{transactional_id}: the transaction with {count} {outcome}")
