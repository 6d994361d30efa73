"""Whose directory it is: formatted once, locked while in use, refused to others."""

from pathlib import Path

import pytest

from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import identify, lock, new_id, new_id_bytes
from minibroker.wire.uuids import parse_uuid


def test_a_new_directory_is_formatted_once_and_in_kafkas_words(tmp_path: Path) -> None:
    first = identify(str(tmp_path), 3)
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert lines == [
        "version=1",
        f"cluster.id={first.cluster_id}",
        "node.id=3",
        f"directory.id={first.directory_id}",
    ]
    assert identify(str(tmp_path), 3) == first
    assert len(first.cluster_id) == 22
    assert len(parse_uuid(first.cluster_id)) == 16


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    identify(str(tmp_path), 3)
    with pytest.raises(BrokerFailure, match="belongs to node 3, this one is 4"):
        identify(str(tmp_path), 4)


@pytest.mark.parametrize(
    "text", ["version=0\nbroker.id=1\n", "", "version=1\ncluster.id=x\n", "version=1\nnode.id=x\n"]
)
def test_a_file_that_says_something_else_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(BrokerFailure, match=r"meta\.properties"):
        identify(str(tmp_path), 1)


def test_kafkas_own_file_is_understood(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("#\n#Mon Nov 16\nversion=1\ncluster.id=abc\nnode.id=1\n")
    assert identify(str(tmp_path), 1).cluster_id == "abc"


def test_one_node_at_a_time(tmp_path: Path) -> None:
    import os

    descriptor = lock(str(tmp_path / "data"))
    with pytest.raises(BrokerFailure, match="in use by another node"):
        lock(str(tmp_path / "data"))
    os.close(descriptor)
    os.close(lock(str(tmp_path / "data")))


def test_ids_are_random_and_never_look_like_an_option() -> None:
    ids = {new_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not any(text.startswith("-") for text in ids)
    assert all(data[6] >> 4 == 4 and data[8] >> 6 == 2 for data in (new_id_bytes() for _ in range(50)))
