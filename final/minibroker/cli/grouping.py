"""Lists, describes, moves and deletes consumer groups, for `minibroker groups`."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from minibroker.cli.connecting import connected, demand_topics, no_such_group
from minibroker.cli.tables import NOT_KNOWN, counted, echo_json, table_text
from minibroker.client.errors import BrokerError
from minibroker.clients import admin, group_admin
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, LATEST
from minibroker.clients.group_admin import GroupDescription, MemberDescription
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

Place = tuple[TopicPartition, int]
"""An offset of a partition."""


def list_groups(bootstrap: str, format_: str) -> None:
    """Show all groups."""
    with connected(bootstrap) as client:
        rows = [(it.group_id, it.kind, it.state, len(it.members)) for it in group_admin.describe_all(client)]
    if format_ == "json":
        keys = ("group", "kind", "state", "members")
        echo_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        click.echo(table_text(["GROUP", "KIND", "STATE", "MEMBERS"], rows))
        _hint_if_none(rows)


def _hint_if_none(groups: Sequence[object]) -> None:
    if not groups:
        click.echo("there are no groups yet: `minibroker consume TOPIC --group NAME` creates one", err=True)


# Describe -----------------------------------------------------------------------------------------------------------


def describe(bootstrap: str, group: str, format_: str) -> None:
    """Show one group: its members, and its progress in each partition."""
    with connected(bootstrap) as client:
        found = _demand_group(client, group)
        [rows] = _progress(client, [found])
    if format_ == "json":
        echo_json(_document(found, rows))
    else:
        click.echo(_text(found, rows))


def describe_all(bootstrap: str, format_: str) -> None:
    """Show all groups, each as `describe` shows one."""
    with connected(bootstrap) as client:
        groups = group_admin.describe_all(client)
        shown = list(zip(groups, _progress(client, groups), strict=True))
    if format_ == "json":
        echo_json([_document(*it) for it in shown])
    else:
        click.echo("\n\n".join(_text(*it) for it in shown), nl=bool(shown))
        _hint_if_none(shown)


def _demand_group(client: Client, group: str) -> GroupDescription:
    found = group_admin.describe_if_there(client, group)
    if found is None:
        raise no_such_group(group, [it.group_id for it in group_admin.list_groups(client)])
    return found


def _progress(client: Client, groups: Sequence[GroupDescription]) -> list[list[dict[str, Any]]]:
    """For each group, one row for each partition that a member has, or that has a committed offset."""
    committed = group_admin.committed_offsets_of_all(client, groups)
    owned = {partition for group in groups for it in group.members for partition in it.partitions}
    ends = _ends(client, sorted(owned.union(*committed.values())))
    behind = {
        (partition, offset)
        for offsets in committed.values()
        for partition, offset in offsets.items()
        if partition in ends and offset < ends[partition]
    }
    times = _first_timestamps(client, behind)
    return [_rows(it, committed[it.group_id], ends, times) for it in groups]


def _rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    times: Mapping[Place, int],
) -> list[dict[str, Any]]:
    owners = {partition: it for it in group.members for partition in it.partitions}
    now_ms = time.time() * 1000
    return [
        {
            "topic": it.topic,
            "partition": it.partition,
            "committed": committed.get(it),
            "end": ends.get(it),
            "lag": ends[it] - committed[it] if it in committed and it in ends else None,
            "lag_seconds": _seconds(it, committed, ends, times, now_ms),
            "member": owners[it].member_id if it in owners else None,
        }
        for it in sorted({*owners, *committed})
    ]


def _first_timestamps(client: Client, places: Iterable[Place]) -> dict[Place, int]:
    """The timestamp of the first record at or after each place, which is an offset of a partition.

    A search takes only one offset of each partition, so several places in one partition need several searches.
    """
    rounds: list[dict[TopicPartition, int]] = []
    counts: Counter[TopicPartition] = Counter()
    for partition, offset in sorted(places):
        if counts[partition] == len(rounds):
            rounds.append({})
        rounds[counts[partition]][partition] = offset
        counts[partition] += 1
    return {
        (partition, offsets[partition]): timestamp
        for offsets in rounds
        for partition, timestamp in group_admin.first_timestamps(client, offsets).items()
    }


def _ends(client: Client, names: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The end offset of each partition that exists and has a leader."""
    wanted = {it.topic for it in names}
    led = {
        TopicPartition(topic.name or "", it.partition_index)
        for topic in client.metadata().topics
        if topic.name in wanted
        for it in topic.partitions
        if it.leader_id >= 0
    }
    found = admin.list_offsets(client, {it: LATEST for it in names if it in led})
    return {it: one.offset for it, one in found.items()}


def _seconds(
    name: TopicPartition,
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    times: Mapping[Place, int],
    now_ms: float,
) -> float | None:
    """The age of the first uncommitted record in seconds; 0 if there is no such record, None if not known."""
    if name not in committed or name not in ends:
        return None
    first_ms = times.get((name, committed[name]))
    if first_ms is not None:
        return round(max(0.0, now_ms - first_ms) / 1000, 1)
    return 0.0 if committed[name] >= ends[name] else None


def _text(group: GroupDescription, rows: Sequence[Mapping[str, Any]]) -> str:
    assignor = f", assignor {group.assignor}" if group.assignor else ""
    title = (
        f"{group.group_id}: {group.kind}, {group.state}, {counted(len(group.members), 'member')}{assignor}, "
        f"coordinator {group.coordinator}"
    )
    parts = [title]
    if group.members:
        members = [[_shown(it), it.client_id, it.host.lstrip("/"), _numbers(it)] for it in group.members]
        parts += ["", table_text(["MEMBER", "CLIENT", "HOST", "PARTITIONS"], sorted(members))]
    if rows:
        keys = ("topic", "partition", "committed", "end", "lag", "lag_seconds", "member")
        cells = [[NOT_KNOWN if row[key] is None else row[key] for key in keys] for row in rows]
        parts += ["", table_text(["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "SECONDS", "MEMBER"], cells)]
    return "\n".join(parts)


def _shown(member: MemberDescription) -> str:
    return member.member_id if member.instance_id is None else f"{member.member_id} ({member.instance_id})"


def _numbers(member: MemberDescription) -> str:
    """The partitions of a member by topic: `orders:0,1`."""
    topics: dict[str, list[str]] = {}
    for it in member.partitions:
        topics.setdefault(it.topic, []).append(str(it.partition))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items()) or NOT_KNOWN


def _document(group: GroupDescription, rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    return {
        "group": group.group_id,
        "kind": group.kind,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "members": [
            {
                "member": it.member_id,
                "instance": it.instance_id,
                "client": it.client_id,
                "host": it.host.lstrip("/"),
                "partitions": [{"topic": one.topic, "partition": one.partition} for one in it.partitions],
            }
            for it in group.members
        ],
        "partitions": list(rows),
    }


# Change -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Destination:
    """The place to which the offsets of a group are moved. Exactly one field is set."""

    is_earliest: bool = False
    is_latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    age_seconds: float | None = None
    shift: int | None = None


def reset(
    bootstrap: str,
    group: str,
    topics: Mapping[str, Sequence[int] | None],
    destination: Destination,
    *,
    is_dry_run: bool,
    format_: str,
) -> None:
    """Show the new offsets of the group, and commit them unless this is a dry run."""
    with connected(bootstrap) as client:
        names = _partitions(client, topics)
        found = group_admin.describe_if_there(client, group)
        if found is not None and found.members:
            raise _has_members(found)
        before = group_admin.committed_offsets(client, group)
        after = _offsets(client, names, before, destination)
        _show(names, before, after, format_)
        if not is_dry_run:
            _commit(client, group, after)
    if format_ == "table":
        count = counted(len(names), "partition")
        outcome = "would change; nothing was done, because of --dry-run" if is_dry_run else "changed"
        click.echo(f"{group}: {count} {outcome}", err=True)


def _partitions(client: Client, topics: Mapping[str, Sequence[int] | None]) -> list[TopicPartition]:
    """All partitions of the topics, or only the given ones."""
    names = []
    for topic in demand_topics(client, topics):
        name = topic.name or ""
        numbers = sorted(it.partition_index for it in topic.partitions)
        wanted = topics[name]
        absent = [it for it in wanted or () if it not in numbers]
        if absent:
            raise click.ClickException(f"{name} has no partition {absent[0]}: its partitions are 0 to {numbers[-1]}")
        names += [TopicPartition(name, it) for it in numbers if wanted is None or it in wanted]
    return names


def _has_members(group: GroupDescription) -> click.ClickException:
    count = counted(len(group.members), "member")
    clients = ", ".join(sorted({f"{it.client_id} at {it.host.lstrip('/')}" for it in group.members}))
    return click.ClickException(
        f"group {group.group_id} has {count}, which would overwrite the new offsets with their own: "
        f"stop the consumers first ({clients}). `minibroker groups describe {group.group_id}` shows the members that "
        "are left; a consumer that crashed is removed after its session timeout, by default 45 s"
    )


def _offsets(
    client: Client, names: Sequence[TopicPartition], before: Mapping[TopicPartition, int], destination: Destination
) -> dict[TopicPartition, int]:
    starts = {it: one.offset for it, one in admin.list_offsets(client, dict.fromkeys(names, EARLIEST)).items()}
    ends = {it: one.offset for it, one in admin.list_offsets(client, dict.fromkeys(names, LATEST)).items()}
    wanted = _wanted(client, before, destination, starts, ends)
    return {it: min(max(wanted[it], starts[it]), ends[it]) for it in names}


def _wanted(
    client: Client,
    before: Mapping[TopicPartition, int],
    destination: Destination,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    """The requested offsets. Some may be outside of the log."""
    if destination.is_earliest:
        return starts
    if destination.is_latest:
        return ends
    if destination.offset is not None:
        return dict.fromkeys(starts, destination.offset)
    if destination.shift is not None:
        uncommitted = [it for it in starts if it not in before]
        if uncommitted:
            raise click.ClickException(
                f"the group has committed no offset in {uncommitted[0]}, so there is none to shift: use --to-earliest, "
                "--to-latest or --to-offset, or name partitions with --topic T:P"
            )
        return {it: before[it] + destination.shift for it in starts}
    time_ms = destination.time_ms
    if time_ms is None:
        time_ms = int(time.time() * 1000 - (destination.age_seconds or 0) * 1000)
    found = admin.list_offsets(client, dict.fromkeys(starts, max(0, time_ms)))
    return {it: one.offset if one.offset >= 0 else ends[it] for it, one in found.items()}


def _show(
    names: Sequence[TopicPartition],
    before: Mapping[TopicPartition, int],
    after: Mapping[TopicPartition, int],
    format_: str,
) -> None:
    if format_ == "json":
        keys = ("topic", "partition", "from", "to")
        echo_json([dict(zip(keys, (*it, before.get(it), after[it]), strict=True)) for it in names])
    else:
        rows = [[it.topic, it.partition, before.get(it, NOT_KNOWN), after[it]] for it in names]
        click.echo(table_text(["TOPIC", "PARTITION", "FROM", "TO"], rows))


def _commit(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    try:
        group_admin.commit_offsets(client, group, offsets)
    except BrokerError as error:
        # The broker refuses the commit if a member has joined in the meantime.
        found = group_admin.describe_if_there(client, group)
        if found is None or not found.members:
            raise
        raise _has_members(found) from error


def delete(bootstrap: str, names: Sequence[str]) -> None:
    """Delete groups; if one cannot be deleted, the others are deleted anyway."""
    unique = list(dict.fromkeys(names))
    with connected(bootstrap) as client:
        refused = group_admin.delete_groups(client, unique)
        for name in unique:
            if name not in refused:
                click.echo(f"deleted {name}")
        for name, error in refused.items():
            raise _not_deleted(client, name, error)


def _not_deleted(client: Client, name: str, error: BrokerError) -> Exception:
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return no_such_group(name, [it.group_id for it in group_admin.list_groups(client)])
    if error.code is ErrorCode.NON_EMPTY_GROUP:
        return click.ClickException(
            f"group {name} has members: stop its consumers first; `minibroker groups describe {name}` shows them"
        )
    return error
