"""Claims about `minibroker sql`: tables made of the topics and groups of a real broker, which a query can only read."""

import csv
import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from brokers import Broker, unique
from cases import case

pytest_plugins = ["clients_fixtures"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def answer(at_broker: Run, query: str) -> list[dict[str, object]]:
    result = at_broker("sql", query, "--format", "json")
    assert result.returncode == 0, result.stderr
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


def refused(result: "subprocess.CompletedProcess[str]", code: int = 1) -> str:
    """The one line that a failure prints."""
    assert (result.returncode, result.stdout) == (code, ""), result
    [line] = result.stderr.splitlines()
    return line


@pytest.fixture
def topic(at_broker: Run) -> str:
    name = unique("queried")
    at_broker("topics", "create", name, "--partitions", "2", "--config", "retention.ms=86400000")
    at_broker("produce", name, "--key-separator", ":", stdin="".join(f"{it}:{it}\n" for it in range(20)))
    return name


def test_topics_are_rows(at_broker: Run, topic: str) -> None:
    [row] = answer(at_broker, f"select * from Topic where name = '{topic}'")
    assert list(row) == ["id", "name", "partition_count", "replication_factor", "retention_ms"]
    assert (row["name"], row["partition_count"], row["replication_factor"]) == (topic, 2, 1)
    assert row["retention_ms"] == 86_400_000
    assert answer(at_broker, f"select count(*) as n from topic where name = '{topic}'") == [{"n": 1}]


def test_a_count_without_a_column_reads_the_table(at_broker: Run, topic: str) -> None:
    [row] = answer(at_broker, "select count(*) as n from topic")
    assert isinstance(row["n"], int)
    assert row["n"] >= 1, topic


def test_groups_and_their_offsets_are_rows(at_broker: Run, topic: str) -> None:
    group = unique("asked")
    at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-latest")
    groups = answer(at_broker, f"select * from ConsumerGroup where group_id = '{group}'")
    assert [list(it) for it in groups] == [["id", "group_id", "protocol"]]
    rows = answer(at_broker, f"select * from PartitionAssignment where group_id = '{group}' order by partition")
    assert [(it["topic"], it["partition"], it["consumer_id"]) for it in rows] == [(topic, 0, None), (topic, 1, None)]
    assert sum(int(str(it["offset"])) for it in rows) == 20


def test_tables_can_be_joined_and_summed(at_broker: Run, topic: str) -> None:
    group = unique("joined")
    at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-latest")
    query = f"""
        select t.name, t.partition_count, sum(a."offset") as done
        from Topic t join PartitionAssignment a on a.topic = t.name
        where a.group_id = '{group}' group by t.name
    """
    assert answer(at_broker, query) == [{"name": topic, "partition_count": 2, "done": 20}]


def test_a_result_is_a_table_json_or_csv(at_broker: Run, topic: str) -> None:
    query = f"select name, partition_count, null as absent from Topic where name = '{topic}'"
    table = at_broker("sql", query).stdout.splitlines()
    assert table[0].split() == ["name", "partition_count", "absent"]
    assert table[1].split() == [topic, "2", "null"]
    rows = list(csv.reader(io.StringIO(at_broker("sql", query, "--format", "csv").stdout)))
    assert rows == [["name", "partition_count", "absent"], [topic, "2", ""]]


def test_a_query_can_only_read(at_broker: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "made.db"
    statements = (
        "delete from Topic",
        "insert into Topic values (1, 'x', 1, 1, 1)",
        "update Topic set name = 'x'",
        "drop table Topic",
        "create table Other (x)",
        "create temp table Other (x)",
        "pragma user_version = 3",
        "pragma table_info(Topic)",
        f"attach '{file}' as other",
        f"vacuum into '{file}'",
        "begin",
        "with x as (select 1) delete from Topic",
    )
    for statement in statements:
        with case(statement):
            line = refused(at_broker("sql", statement))
            assert "only a select from these tables is allowed" in line
    assert not file.exists()
    assert answer(at_broker, f"select name from Topic where name = '{topic}'") == [{"name": topic}]


def test_a_wrong_query_is_one_line_that_names_tables_and_columns(minibroker: Run) -> None:
    # The query is checked before a broker is asked, so none is needed here.
    nowhere = {"MINIBROKER_BOOTSTRAP_SERVER": "127.0.0.1:1"}
    for query, complaint in {
        "select * from Topics": "no such table: Topics",
        "select nme from Topic": "no such column: nme",
        "selec 1": "syntax error",
        "": "incomplete input",
        "select 1; select 2": "more than one",
    }.items():
        with case(query):
            line = refused(minibroker("sql", query, **nowhere))
            assert complaint in line
            assert line.startswith("minibroker sql: ")
            assert "more than one" in line or "PartitionAssignment (group_id, topic, partition, consumer_id" in line


def test_no_broker_is_one_line(minibroker: Run, broker: Broker) -> None:
    del broker
    line = refused(minibroker("sql", "select * from Topic", MINIBROKER_BOOTSTRAP_SERVER="127.0.0.1:1"))
    assert "--bootstrap-server" in line
