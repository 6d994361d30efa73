"""`minibroker plan`: capacity from rates and retention. This module reads and prints; `capacity` calculates."""

from dataclasses import asdict

import click

from minibroker.cli import capacity
from minibroker.cli.capacity import Machine, Plan, Workload
from minibroker.cli.quantities import DAY_SECONDS, duration, duration_text, rate_text, size, size_text
from minibroker.cli.tables import counted, echo_json, format_option, table_text

RATES = ("--records-per-second", "--bytes-per-second", "--bytes-per-day")


@click.command()
@click.option("--records-per-second", type=click.FloatRange(min=0, min_open=True), help="The average rate, in records.")
@click.option("--bytes-per-second", type=size, help="Or the average rate in bytes, such as 115MB.")
@click.option("--bytes-per-day", type=size, help="Or the average rate in bytes per day, such as 10TB.")
@click.option("--record-size", type=size, default="1KB", show_default=True, help="Average size of a record.")
@click.option(
    "--peak",
    type=click.FloatRange(min=1),
    default=3,
    show_default=True,
    help="Rate of the busiest hour ÷ average rate.",
)
@click.option(
    "--replication-factor", type=click.IntRange(min=1), default=3, show_default=True, help="Replicas of each record."
)
@click.option("--retention", type=duration, default="7d", show_default=True, help="How long records are kept.")
@click.option(
    "--groups",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Consumer groups; each reads every record.",
)
@click.option("--node-disk", type=size, default="12TB", show_default=True, help="Disk of one node.")
@click.option(
    "--node-network",
    type=size,
    default="1.25GB",
    show_default=True,
    help="Network of one node: bytes per second in each direction. 1.25GB are 10 Gbit/s.",
)
@click.option(
    "--headroom", type=click.FloatRange(0, 0.9), default=0.3, show_default=True, help="Share of each node to keep free."
)
@click.option(
    "--partition-rate",
    type=size,
    default="10MB",
    show_default=True,
    help="Bytes per second that one partition sustains.",
)
@click.option("--segment-size", type=size, default="1GiB", show_default=True, help="The setting segment.bytes.")
@format_option
def plan(
    records_per_second: float | None,
    bytes_per_second: float | None,
    bytes_per_day: float | None,
    record_size: float,
    format_: str,
    **options: float,
) -> None:
    """Calculate disk, network, index memory, partitions and nodes.

    Give the rate in one of three ways. KB, MB, GB and TB are powers of ten, KiB, MiB, GiB and TiB powers of two;
    durations are in s, m, h or d.
    """
    rates = [
        None if records_per_second is None else records_per_second * record_size,
        bytes_per_second,
        None if bytes_per_day is None else bytes_per_day / DAY_SECONDS,
    ]
    given = [rate for rate in rates if rate is not None]
    if len(given) != 1:
        raise click.UsageError(f"give the rate with exactly one of {', '.join(RATES)}.")
    workload = _workload(given[0], record_size, options)
    machine = _machine(options)
    found = capacity.plan(workload, machine)
    if format_ == "json":
        echo_json({"workload": asdict(workload), "machine": asdict(machine), "plan": asdict(found)})
    else:
        click.echo(_text(workload, machine, found))


def _workload(bytes_per_second: float, record_bytes: float, options: dict[str, float]) -> Workload:
    return Workload(
        bytes_per_second=bytes_per_second,
        record_bytes=record_bytes,
        peak_factor=options["peak"],
        replication_factor=int(options["replication_factor"]),
        retention_seconds=options["retention"],
        groups=int(options["groups"]),
    )


def _machine(options: dict[str, float]) -> Machine:
    return Machine(
        disk_bytes=options["node_disk"],
        network_bytes_per_second=options["node_network"],
        headroom=options["headroom"],
        partition_bytes_per_second=options["partition_rate"],
        segment_bytes=options["segment_size"],
    )


def _text(workload: Workload, machine: Machine, found: Plan) -> str:
    average, peak = found.network, found.network_peak
    rates: list[tuple[str, str, str]] = [
        ("records in", f"{found.records_per_second:,.0f}/s", f"{found.records_per_second_peak:,.0f}/s"),
        ("in, from producers", rate_text(average.in_producers), rate_text(peak.in_producers)),
        ("in, to further replicas", rate_text(average.in_replication), rate_text(peak.in_replication)),
        ("in, total", rate_text(average.in_total), rate_text(peak.in_total)),
        (f"out, to {counted(workload.groups, 'group')}", rate_text(average.out_groups), rate_text(peak.out_groups)),
        ("out, to further replicas", rate_text(average.out_replication), rate_text(peak.out_replication)),
        ("out, total", rate_text(average.out_total), rate_text(peak.out_total)),
    ]
    stored = [
        ("disk, one copy", size_text(found.disk_bytes_one_copy), f"{duration_text(workload.retention_seconds)} kept"),
        (f"disk, {counted(workload.replication_factor, 'replica')}", size_text(found.disk_bytes), ""),
        ("index files, at most", size_text(found.index_bytes_max), "mapped; each index has an entry per 4 KiB of log"),
        ("index memory, hot", size_text(found.index_bytes_hot), "of the active segments"),
        (
            "partitions",
            str(found.partitions),
            f"at {rate_text(machine.partition_bytes_per_second)} each, the same number on each node",
        ),
        ("nodes", str(found.nodes), _because(machine, found)),
    ]
    return "\n\n".join(
        [
            table_text(["WHOLE CLUSTER", "AVERAGE", f"PEAK (×{workload.peak_factor:g})"], rates),
            table_text(["WHOLE CLUSTER", "NEEDED", ""], stored),
        ]
    )


def _because(machine: Machine, found: Plan) -> str:
    has = f"{size_text(machine.disk_bytes)} and {rate_text(machine.network_bytes_per_second)} in each direction"
    return f"for {found.nodes_because}; each node has {has}, {100 * machine.headroom:.0f} % kept free"
