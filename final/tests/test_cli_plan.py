"""Claims about `minibroker plan`: the calculation, the units, and a well-known example."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from minibroker.cli.capacity import Machine, Workload
from minibroker.cli.capacity import plan as plan_for
from minibroker.cli.plan import plan
from minibroker.cli.quantities import duration_text, parse_bytes, parse_seconds, rate_text, size_text

MACHINE = Machine(
    disk_bytes=12e12,
    network_bytes_per_second=1.25e9,
    headroom=0.3,
    partition_bytes_per_second=10e6,
    segment_bytes=2**30,
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan, arguments)


def planned(*arguments: str) -> Any:
    ended = run(*arguments, "--format", "json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.output)["plan"]


def workload(**changes: Any) -> Workload:
    chosen: dict[str, Any] = {
        "bytes_per_second": 1e6,
        "record_bytes": 1000,
        "peak_factor": 3,
        "replication_factor": 3,
        "retention_seconds": 86400,
        "groups": 2,
    }
    return Workload(**chosen | changes)


TEN_TERABYTES_A_DAY = """\
WHOLE CLUSTER             AVERAGE     PEAK (×3)
records in                115,741/s   347,222/s
in, from producers        115.7 MB/s  347.2 MB/s
in, to further replicas   231.5 MB/s  694.4 MB/s
in, total                 347.2 MB/s  1.042 GB/s
out, to 5 groups          578.7 MB/s  1.736 GB/s
out, to further replicas  231.5 MB/s  694.4 MB/s
out, total                810.2 MB/s  2.431 GB/s

WHOLE CLUSTER         NEEDED
disk, one copy        70 TB     7 d kept
disk, 3 replicas      210 TB
index files, at most  1.025 TB  mapped; each index has an entry per 4 KiB of log
index memory, hot     817.9 MB  of the active segments
partitions            52        at 10 MB/s each, the same number on each node
nodes                 26        for the disk; each node has 12 TB and 1.25 GB/s in each direction, 30 % kept free
"""


def test_the_plan_for_ten_terabytes_a_day_is_printed_as_recorded() -> None:
    ended = run("--bytes-per-day", "10TB", "--groups", "5")
    assert ended.exit_code == 0
    assert ended.output == TEN_TERABYTES_A_DAY


def test_ten_terabytes_a_day_are_115_megabytes_a_second_and_210_terabytes_of_disk() -> None:
    found = planned("--bytes-per-day", "10TB", "--record-size", "1KB", "--retention", "7d", "--groups", "5")
    assert int(found["network"]["in_producers"] / 1e6) == 115
    assert int(found["records_per_second"]) == 115_740
    assert found["records_per_second_peak"] == pytest.approx(350_000, rel=0.01)
    assert found["disk_bytes_one_copy"] == pytest.approx(70e12)
    assert found["disk_bytes"] == pytest.approx(210e12)


def test_115_megabytes_a_second_are_345_in_with_three_replicas_and_575_out_to_five_groups() -> None:
    found = planned("--bytes-per-second", "115MB", "--groups", "5")
    assert found["network"]["in_total"] == pytest.approx(345e6)
    assert found["network"]["out_groups"] == pytest.approx(575e6)


def test_a_rate_may_be_given_in_three_ways() -> None:
    ways = [
        ("--records-per-second", "1000", "--record-size", "2KB"),
        ("--bytes-per-second", "2MB", "--record-size", "2KB"),
        ("--bytes-per-day", "172.8GB", "--record-size", "2KB"),
    ]
    first, *others = [planned(*way) for way in ways]
    assert others == [first, first]


def test_no_rate_or_two_rates_are_wrong_usage() -> None:
    for arguments in ((), ("--bytes-per-day", "1TB", "--bytes-per-second", "1MB")):
        ended = run(*arguments)
        assert ended.exit_code == 2, arguments
        assert "give the rate with exactly one of" in ended.output, arguments


def test_a_quantity_that_cannot_be_read_is_wrong_usage() -> None:
    sizes = [("--bytes-per-day", value) for value in ("10XB", "ten", "0")]
    for option, value in [*sizes, ("--retention", "7")]:
        ended = run("--records-per-second", "1", option, value)
        assert ended.exit_code == 2, (option, value)
        assert value in ended.output, option


# The calculation.


@given(st.integers(min_value=1, max_value=10**10), st.integers(1, 5), st.integers(0, 9))
def test_leaders_send_what_followers_receive(rate: int, replicas: int, groups: int) -> None:
    found = plan_for(workload(bytes_per_second=rate, replication_factor=replicas, groups=groups), MACHINE).network
    assert found.in_replication == found.out_replication
    assert found.in_total == pytest.approx(rate * replicas)
    assert found.out_total == pytest.approx(rate * (groups + replicas - 1))


@given(st.integers(min_value=1, max_value=10**10), st.integers(1, 5), st.integers(0, 9))
def test_no_node_uses_its_headroom(rate: int, replicas: int, groups: int) -> None:
    found = plan_for(workload(bytes_per_second=rate, replication_factor=replicas, groups=groups), MACHINE)
    usable = 1 - MACHINE.headroom + 1e-9
    assert found.nodes >= replicas
    assert (found.disk_bytes + found.index_bytes_max) / found.nodes <= MACHINE.disk_bytes * usable
    assert found.network_peak.in_total / found.nodes <= MACHINE.network_bytes_per_second * usable
    assert found.network_peak.out_total / found.nodes <= MACHINE.network_bytes_per_second * usable
    assert found.partitions % found.nodes == 0
    assert found.network_peak.in_producers / found.partitions <= MACHINE.partition_bytes_per_second
    assert found.index_bytes_hot <= found.index_bytes_max


def test_an_index_takes_two_mebibytes_for_a_gibibyte_and_a_time_index_three() -> None:
    one_gib = workload(bytes_per_second=2**30, retention_seconds=1, replication_factor=1)
    assert plan_for(one_gib, MACHINE).index_bytes_max == 5 * 2**20


def test_the_scarcest_resource_sets_the_number_of_nodes() -> None:
    a_minute_of_1_gb_per_second = {"retention_seconds": 60, "bytes_per_second": 1e9}
    cases: dict[str, dict[str, float]] = {
        "the replicas": {},
        "the disk": {"retention_seconds": 365 * 86400},
        "the outgoing traffic at peak": {**a_minute_of_1_gb_per_second, "groups": 20},
        "the incoming traffic at peak": {**a_minute_of_1_gb_per_second, "groups": 0},
    }
    for because, changes in cases.items():
        assert plan_for(workload(**changes), MACHINE).nodes_because == because


# Units.


def test_sizes_are_powers_of_ten_unless_their_unit_is_a_power_of_two() -> None:
    expected = {"512": 512, "1KB": 1000, "1KiB": 1024, "10 TB": 10e12, "1.5gib": 1.5 * 2**30, "7B": 7}
    assert {text: parse_bytes(text) for text in expected} == expected


def test_durations_are_read_with_their_unit() -> None:
    expected = {"7d": 604800, "500ms": 0.5, "90m": 5400, "1.5h": 5400}
    assert {text: parse_seconds(text) for text in expected} == expected


def test_sizes_are_written_with_four_digits() -> None:
    expected = {210e12: "210 TB", 115.74e6: "115.7 MB", 999.97e6: "1 GB", 5: "5 B", 0: "0 B"}
    assert {count: size_text(count) for count in expected} == expected
    assert {count: rate_text(count) for count in expected} == {count: f"{it}/s" for count, it in expected.items()}


def test_durations_are_written_in_the_largest_unit_that_divides_them() -> None:
    expected = {604800: "7 d", 129600: "36 h", 90: "90 s", 0.5: "500 ms"}
    assert {seconds: duration_text(seconds) for seconds in expected} == expected
