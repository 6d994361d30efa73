"""Moves partitions and elects their leaders, for `minibroker topics reassign` and `elect-leaders`."""

import sys
import time
from collections.abc import Mapping, Sequence

import click

from minibroker.cli import replica_placement
from minibroker.cli.connecting import connected, demand_topics
from minibroker.cli.prospects import Prospect, prospect
from minibroker.cli.replica_placement import Racks
from minibroker.cli.tables import counted, echo_json, table_text
from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.segments.checkpoint import TopicPartition

_ATTEMPTS_MAX = 40
_RETRY_S = 0.05


def move(bootstrap: str, topic: str, *, partition: int, replicas: Sequence[int]) -> None:
    """Begin to move one partition to the given nodes."""
    with connected(bootstrap) as client:
        (name,) = _partitions(client, topic, partition)
        before = _replicas(client, name)
        admin.reassign_partitions(client, {name: replicas})
        is_moving = name in admin.list_reassignments(client)
    if is_moving:
        click.echo(f"{name} is being moved from {_ids(before)} to {_ids(replicas)}")
    else:
        click.echo(f"{name} is on {_ids(replicas)}")


def drain(bootstrap: str, node_id: int, *, topic: str | None, is_dry_run: bool, format_: str) -> None:
    """Move every replica off a node, or only the replicas of one topic."""
    with connected(bootstrap) as client:
        before, racks = _placed(client, topic)
        if node_id not in racks and not any(node_id in it for it in before.values()):
            raise click.ClickException(f"there is no node {node_id}: the live brokers are {_ids(sorted(racks))}")
        try:
            plan = replica_placement.drain_plan(before, racks, node_id, topic=topic)
        except replica_placement.NoBrokerLeft as error:
            others = _ids(sorted(it for it in racks if it != node_id))
            raise click.ClickException(
                f"{error}, and no other live broker can take the replica of node {node_id}: the others are {others}. "
                "Start one more broker, or give the partition fewer replicas with --partition and --replicas"
            ) from error
        _carry_out(client, before, plan, is_dry_run=is_dry_run, format_=format_)
    if not plan and format_ == "table":
        click.echo(f"nothing to move: node {node_id} has no replicas, or all of them are being moved already", err=True)


def spread(bootstrap: str, *, topic: str | None, is_dry_run: bool, format_: str) -> None:
    """Give each live broker its share of all replicas, or of the replicas of one topic."""
    with connected(bootstrap) as client:
        before, racks = _placed(client, topic)
        plan = replica_placement.spread_plan(before, racks, topic=topic)
        _carry_out(client, before, plan, is_dry_run=is_dry_run, format_=format_)
    if not plan and format_ == "table":
        click.echo(f"nothing to move: {counted(len(racks), 'live broker')}, replicas evenly spread", err=True)


def raise_factor(bootstrap: str, topic: str, factor: int) -> None:
    """Begin to raise the number of replicas of each partition of a topic to `factor`."""
    with connected(bootstrap) as client:
        before, racks = _placed(client, topic)
        most = max(len(it) for name, it in before.items() if name.topic == topic)
        if most > factor:
            raise click.ClickException(
                f"{topic} has {counted(most, 'replica')} of each partition, more than {factor}: take replicas away "
                "with `minibroker topics reassign --partition --replicas`"
            )
        try:
            plan = replica_placement.factor_plan(before, racks, topic, factor)
        except replica_placement.NoBrokerLeft as error:
            raise click.ClickException(
                f"{error}, and {factor} replicas need {factor} live brokers: there are {len(racks)}. Start more "
                "brokers, or give a smaller --replication-factor"
            ) from error
        if plan:
            admin.reassign_partitions(client, plan)
    moves = f"copying {counted(len(plan), 'partition')}; `minibroker topics reassign {topic}` lists the unfinished ones"
    click.echo(f"{topic}: {counted(factor, 'replica')}" + (f", {moves}" if plan else ""))


def _placed(client: Client, topic: str | None) -> tuple[dict[TopicPartition, tuple[int, ...]], Racks]:
    """The replicas of every partition once all moves under way are finished, and the rack of each live broker."""
    if topic is not None:
        demand_topics(client, [topic])
    moves = admin.list_reassignments(client)
    before = {
        TopicPartition(it.name, one.partition): tuple(one.replicas)
        for it in admin.describe_topics(client).values()
        for one in it.partitions
    }
    before |= {name: tuple(one for one in it.replicas if one not in it.removing) for name, it in moves.items()}
    return before, {it.node_id: it.rack for it in admin.describe_cluster(client).nodes}


def _carry_out(
    client: Client,
    before: Mapping[TopicPartition, Sequence[int]],
    plan: Mapping[TopicPartition, Sequence[int]],
    *,
    is_dry_run: bool,
    format_: str,
) -> None:
    """Print a plan, and begin its moves unless this is a dry run."""
    if format_ == "json":
        keys = ("topic", "partition", "from", "to")
        echo_json([dict(zip(keys, (*it, list(before[it]), list(plan[it])), strict=True)) for it in sorted(plan)])
    elif plan:
        rows = [[it.topic, it.partition, _ids(before[it]), _ids(plan[it])] for it in sorted(plan)]
        click.echo(table_text(["TOPIC", "PARTITION", "FROM", "TO"], rows))
    if plan and not is_dry_run:
        admin.reassign_partitions(client, plan)
    if plan and format_ == "table":
        moves = counted(len(plan), "partition")
        click.echo(
            f"{moves} would move; nothing was done, because of --dry-run"
            if is_dry_run
            else f"{moves} being moved; `minibroker topics reassign` lists the moves that are not finished",
            err=True,
        )


def cancel(bootstrap: str, topic: str, *, partition: int | None) -> None:
    """Cancel the moves of a topic, or of one partition."""
    with connected(bootstrap) as client:
        moves = admin.list_reassignments(client)
        under_way = [name for name in _partitions(client, topic, partition) if name in moves]
        if not under_way:
            what = topic if partition is None else str(TopicPartition(topic, partition))
            raise click.ClickException(f"no move of {what} is under way: `minibroker topics reassign` lists all moves")
        admin.reassign_partitions(client, dict.fromkeys(under_way))
        for name in under_way:
            it = moves[name]
            click.echo(f"{name} stays on {_ids([one for one in it.replicas if one not in it.adding])}")


def list_moves(bootstrap: str, topic: str | None, format_: str) -> None:
    """Show the moves that are under way."""
    with connected(bootstrap) as client:
        if topic is not None:
            demand_topics(client, [topic])
        moves = admin.list_reassignments(client)
    found = {name: it for name, it in sorted(moves.items()) if topic in (None, name.topic)}
    if format_ == "json":
        keys = ("replicas", "adding", "removing")
        echo_json(
            [
                {"topic": name.topic, "partition": name.partition} | {key: list(getattr(it, key)) for key in keys}
                for name, it in found.items()
            ]
        )
        return
    rows = [
        [name.topic, name.partition, *map(_ids, (it.replicas, it.adding, it.removing))] for name, it in found.items()
    ]
    click.echo(table_text(["TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"], rows))
    if not rows:
        click.echo("no moves are under way", err=True)


def elect(bootstrap: str, topic: str | None, *, partition: int | None) -> None:
    """Elect preferred leaders."""
    with connected(bootstrap) as client:
        wanted = None if topic is None else _partitions(client, topic, partition)
        elected = _elect(client, wanted, is_unclean=False)
    if not elected:
        click.echo("every partition has its preferred leader already")


def elect_uncleanly(bootstrap: str, topic: str, *, partition: int | None, is_confirmed: bool, is_dry_run: bool) -> None:
    """Say what would be lost, ask, and elect the replica with the longest log of each partition without a leader."""
    with connected(bootstrap) as client:
        prospects = _prospects(client, _partitions(client, topic, partition))
        if not prospects:
            click.echo("every partition has a leader already")
            return
        for name, it in prospects.items():
            click.echo(f"{name}: {it or 'no replica answers, so none can lead'}")
        if is_dry_run:
            click.echo("nothing was done, because of --dry-run", err=True)
        elif is_confirmed or _confirm():
            _elect(client, list(prospects), is_unclean=True)


def _confirm() -> bool:
    if not sys.stdin.isatty():
        raise click.ClickException("an unclean election loses records: confirm it with --yes, or look with --dry-run")
    return click.confirm("elect these leaders?")


def _prospects(client: Client, names: Sequence[TopicPartition]) -> dict[TopicPartition, Prospect | None]:
    """What an unclean election would do with each of these partitions that has no leader."""
    topics = admin.describe_eligible(client, admin.describe_topics(client, sorted({it.topic for it in names})))
    found = {name: topics[name.topic].partitions[name.partition] for name in names}
    offline = {name: it for name, it in found.items() if it.leader_id < 0}
    live = {it.node_id for it in admin.describe_cluster(client).nodes} if offline else set()
    ends = admin.replica_ends(
        client, {name: [one for one in it.replicas if one in live] for name, it in offline.items()}
    )
    return {name: prospect(it.replicas, ends[name], last_leader=it.last_leader) for name, it in sorted(offline.items())}


def _elect(client: Client, wanted: Sequence[TopicPartition] | None, *, is_unclean: bool) -> list[TopicPartition]:
    elected = sorted(admin.elect_leaders(client, wanted, is_unclean=is_unclean))
    for name, leader_id in _leaders(client, elected, is_unclean=is_unclean).items():
        click.echo(f"{name}: node {leader_id} leads")
    return elected


def _leaders(client: Client, names: Sequence[TopicPartition], *, is_unclean: bool) -> dict[TopicPartition, int]:
    """The leaders of partitions after their elections. Wait a moment for the answering node to apply them."""
    for _attempt in range(_ATTEMPTS_MAX):
        topics = admin.describe_topics(client, sorted({name.topic for name in names}))
        found = {name: topics[name.topic].partitions[name.partition] for name in names}
        if all(it.leader_id >= 0 if is_unclean else it.leader_id == it.replicas[0] for it in found.values()):
            break
        time.sleep(_RETRY_S)
    return {name: it.leader_id for name, it in found.items()}


def _partitions(client: Client, topic: str, partition: int | None) -> list[TopicPartition]:
    """The given partition, or all partitions of the topic; a number that does not exist is an error."""
    (found,) = demand_topics(client, [topic])
    numbers = sorted(it.partition_index for it in found.partitions)
    if partition is not None and partition not in numbers:
        raise click.ClickException(f"{topic} has no partition {partition}: its partitions are 0 to {numbers[-1]}")
    return [TopicPartition(topic, number) for number in numbers if partition in (None, number)]


def _replicas(client: Client, name: TopicPartition) -> Sequence[int]:
    return admin.describe_topics(client, [name.topic])[name.topic].partitions[name.partition].replicas


def _ids(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes)) or "-"
