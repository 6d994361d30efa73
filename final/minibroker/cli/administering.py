"""Creates, lists, describes, alters and deletes topics, for `minibroker topics`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from minibroker.cli.connecting import connected, demand_topics, is_unknown, no_such_topic
from minibroker.cli.tables import NOT_KNOWN, counted, echo_json, table_text
from minibroker.client.errors import BrokerError, BrokerUnavailable, ConnectionLost, RequestTimedOut
from minibroker.clients import admin
from minibroker.clients.admin import ConfigSource, DescribedTopic, NewTopic, ResourceType
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, LATEST
from minibroker.clients.errors import BrokerErrors
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import uuid_text


def create(
    bootstrap: str,
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
    may_exist: bool,
) -> None:
    """Create a topic. The broker's defaults replace values that are None."""
    wanted = NewTopic(name, partitions or -1, replication_factor or -1, configs)
    with connected(bootstrap) as client:
        try:
            made = admin.create_topics(client, [wanted])[name]
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            if not may_exist:
                raise click.ClickException(
                    f"the topic {name!r} exists already: look at it with `minibroker topics describe {name}`, or add "
                    "--if-not-exists"
                ) from error
            click.echo(f"{name} exists already")
            return
    click.echo(
        f"created {name}: {counted(made.partitions, 'partition')}, {counted(made.replication_factor, 'replica')}"
    )


def list_topics(bootstrap: str, format_: str) -> None:
    """Show all topics."""
    with connected(bootstrap) as client:
        topics = [topic for topic in admin.describe_topics(client).values() if not topic.is_internal]
    rows = sorted((topic.name, len(topic.partitions), _replication_factor(topic)) for topic in topics)
    if format_ == "json":
        keys = ("name", "partitions", "replication_factor")
        echo_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        click.echo(table_text(["TOPIC", "PARTITIONS", "REPLICAS"], rows))
        if not rows:
            click.echo("there are no topics yet: `minibroker topics create NAME` creates one", err=True)


def _replication_factor(topic: DescribedTopic) -> int:
    return max((len(it.replicas) for it in topic.partitions), default=0)


# Describe -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Details:
    """Facts about topics that are not in their metadata; an unknown fact has no entry."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, int]
    configs: Mapping[str, Mapping[str, str | None]]


def describe(bootstrap: str, names: Sequence[str], format_: str) -> None:
    """Show topics in full, all topics if none is named."""
    with connected(bootstrap) as client:
        demand_topics(client, names)
        found = admin.describe_eligible(client, admin.describe_topics(client, names or None))
        topics = [topic for topic in found.values() if names or not topic.is_internal]
        topics.sort(key=lambda topic: topic.name)
        details = _details(client, topics)
    if format_ == "json":
        echo_json([_document(topic, details) for topic in topics])
    else:
        click.echo("\n\n".join(_text(topic, details) for topic in topics) or "there are no topics yet")


def _details(client: Client, topics: Sequence[DescribedTopic]) -> Details:
    leaders = {
        TopicPartition(topic.name, it.partition): it.leader_id
        for topic in topics
        for it in topic.partitions
        if it.leader_id >= 0
    }
    # Partitions whose leader does not answer are left out, so that the command does not wait for them.
    sizes = _sizes(client, leaders)
    led = [name for name in leaders if name in sizes]
    starts = admin.list_offsets(client, dict.fromkeys(led, EARLIEST))
    ends = admin.list_offsets(client, dict.fromkeys(led, LATEST))
    entries = admin.describe_configs(client, ResourceType.TOPIC, [topic.name for topic in topics])
    configs = {
        topic: {it.name: it.value for it in found.values() if it.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}
        for topic, found in entries.items()
    }
    return Details(
        {name: it.offset for name, it in starts.items()}, {name: it.offset for name, it in ends.items()}, sizes, configs
    )


def _sizes(client: Client, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The size of each partition at its leader, for those leaders that answer."""
    sizes: dict[TopicPartition, int] = {}
    for node_id in sorted(set(leaders.values())):
        try:
            directories = admin.describe_log_dirs(client, [node_id])[node_id]
        except (BrokerUnavailable, ConnectionLost, RequestTimedOut):
            continue
        # The replicas of one partition can differ in size; the size of the leader's replica is shown.
        known = {name: size for it in directories for name, size in it.partition_bytes.items()}
        sizes |= {name: known[name] for name, leader in leaders.items() if leader == node_id and name in known}
    return sizes


def _text(topic: DescribedTopic, details: Details) -> str:
    title = (
        f"{topic.name}: {counted(len(topic.partitions), 'partition')}, "
        f"{counted(_replication_factor(topic), 'replica')}, id {uuid_text(topic.topic_id)}"
    )
    settings = ", ".join(f"{name}={value}" for name, value in sorted(details.configs[topic.name].items()))
    rows = [
        [
            row["partition"],
            NOT_KNOWN if row["leader"] is None else row["leader"],
            ",".join(map(str, row["replicas"])),
            ",".join(map(str, row["isr"])),
            *(NOT_KNOWN if row[key] is None else row[key] for key in ("log_start_offset", "log_end_offset", "bytes")),
        ]
        for row in _partitions(topic, details)
    ]
    columns = ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "BYTES"]
    parts = [title, f"settings: {settings or 'all defaults'}", table_text(columns, rows), *_warnings(topic)]
    return "\n".join(parts)


def _warnings(topic: DescribedTopic) -> list[str]:
    """One line for each problem, with the partitions that have it."""
    behind = [str(it.partition) for it in topic.partitions if len(it.isr) < len(it.replicas)]
    headless = [str(it.partition) for it in topic.partitions if it.leader_id < 0]
    eligible = [f"{it.partition} (node {','.join(map(str, it.eligible))})" for it in topic.partitions if it.eligible]
    found = {
        "under-replicated, not all replicas are in sync": behind,
        "without a leader": headless,
        "not in sync, but eligible to lead without a loss": eligible,
    }
    return [f"{what}: {', '.join(partitions)}" for what, partitions in found.items() if partitions]


def _document(topic: DescribedTopic, details: Details) -> dict[str, object]:
    return {
        "name": topic.name,
        "id": uuid_text(topic.topic_id),
        "configs": dict(sorted(details.configs[topic.name].items())),
        "partitions": _partitions(topic, details),
    }


def _partitions(topic: DescribedTopic, details: Details) -> list[dict[str, Any]]:
    rows = []
    for it in topic.partitions:
        name = TopicPartition(topic.name, it.partition)
        rows.append(
            {
                "partition": it.partition,
                "leader": it.leader_id if it.leader_id >= 0 else None,
                "replicas": list(it.replicas),
                "isr": list(it.isr),
                "eligible_leader_replicas": list(it.eligible),
                "last_leader": it.last_leader if it.last_leader >= 0 else None,
                "log_start_offset": details.starts.get(name),
                "log_end_offset": details.ends.get(name),
                "bytes": details.sizes.get(name),
            }
        )
    return rows


# Change -------------------------------------------------------------------------------------------------------------


def alter(
    bootstrap: str, name: str, *, partitions: int | None, configs: Mapping[str, str], removed: Sequence[str]
) -> None:
    """Change settings, then add partitions, so that a refused setting leaves the topic as it was."""
    both = sorted(set(configs) & set(removed))
    if both:
        raise click.UsageError(f"{both[0]} cannot be set and deleted at the same time.")
    with connected(bootstrap) as client:
        demand_topics(client, [name])
        changes: dict[str, str | None] = {**configs, **dict.fromkeys(removed)}
        if changes:
            admin.alter_configs(client, ResourceType.TOPIC, name, changes)
            for key, value in changes.items():
                click.echo(f"{name}: {key} is back to its default" if value is None else f"{name}: {key}={value}")
        if partitions is not None:
            admin.create_partitions(client, {name: partitions})
            click.echo(f"{name}: {counted(partitions, 'partition')}")


def delete(bootstrap: str, names: Sequence[str], *, may_be_absent: bool) -> None:
    """Delete topics; if one cannot be deleted, the others are deleted anyway."""
    unique = list(dict.fromkeys(names))
    with connected(bootstrap) as client:
        others = admin.list_topics(client, include_internal=True)
        refused = _delete(client, unique)
    for name in unique:
        if name not in refused:
            click.echo(f"deleted {name}")
    absent = [name for name, error in refused.items() if is_unknown(error.code)]
    for name, error in refused.items():
        if name not in absent:
            raise error
    if absent and not may_be_absent:
        raise no_such_topic(absent[0], others)


def _delete(client: Client, names: Sequence[str]) -> dict[str, BrokerError]:
    """Try to delete each topic; return the errors by name."""
    try:
        admin.delete_topics(client, names)
    except BrokerErrors as errors:
        return {about.removeprefix("topic "): error for about, error in errors.errors.items()}
    except BrokerError as error:
        return {name: error for name in names if str(error).startswith(f"topic {name}: ")}
    return {}
