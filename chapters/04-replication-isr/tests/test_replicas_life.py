"""Whether a node that comes back still has all that it had: a killed process does, a machine without power may not."""

import pytest

from minibroker.log.memory import MemoryFiles
from minibroker.replicas import life

PATH = "data"


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.mkdir(PATH)
    return files


def previous(files: MemoryFiles, *, boot: str | None = "monday", is_clean: bool = False) -> int:
    return life.previous_broker_epoch(files, PATH, boot=boot, is_clean=is_clean)


def test_a_new_directory_is_of_no_life(files: MemoryFiles) -> None:
    assert previous(files) == previous(files, is_clean=True) == -1


def test_a_killed_process_has_all_because_the_machine_runs_on(files: MemoryFiles) -> None:
    life.remember_broker_epoch(files, PATH, 17, "monday")
    assert previous(files, boot="monday") == 17


def test_after_a_power_cut_only_a_clean_shutdown_vouches(files: MemoryFiles) -> None:
    life.remember_broker_epoch(files, PATH, 17, "monday")
    assert previous(files, boot="tuesday") == -1
    assert previous(files, boot="tuesday", is_clean=True) == 17


def test_where_the_system_does_not_tell_its_start_only_a_clean_shutdown_vouches(files: MemoryFiles) -> None:
    life.remember_broker_epoch(files, PATH, 17, None)
    assert previous(files, boot=None) == -1
    assert previous(files, boot=None, is_clean=True) == 17


def test_the_last_life_counts_and_it_is_on_the_disk(files: MemoryFiles) -> None:
    for epoch in (17, 18):
        life.remember_broker_epoch(files, PATH, epoch, "monday")
    files.crash()
    assert previous(files) == 18


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"version": 0, "brokerEpoch": "x", "bootId": "monday"}', b"\xff"]
)
def test_a_damaged_file_vouches_for_nothing(files: MemoryFiles, damage: bytes) -> None:
    file = files.open(f"{PATH}/{life.BROKER_EPOCH}")
    file.pwrite(damage, 0)
    file.close()
    assert previous(files, is_clean=True) == -1


def test_this_machine_names_its_start_or_says_that_it_cannot() -> None:
    assert life.boot_id() == life.boot_id()
    assert life.boot_id() != ""
