"""Whether a node that restarts still has all its records: after a kill it does, after a power cut it may not."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from cases import case

from minibroker.log.memory import MemoryFiles
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Image
from minibroker.partitions.identity import Identity
from minibroker.replicas import epoch_file
from minibroker.replicas.fetching import Incarnation
from minibroker.replicas.registration import Registration
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.segments import checkpoint

PATH = "data"


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.mkdir(PATH)
    return files


def previous(files: MemoryFiles, *, boot: str | None = "monday", is_clean: bool = False) -> int:
    return epoch_file.previous_broker_epoch(files, PATH, boot=boot, is_clean=is_clean)


def test_a_new_directory_has_no_previous_incarnation(files: MemoryFiles) -> None:
    assert previous(files) == previous(files, is_clean=True) == -1


def test_a_killed_process_has_all_its_records_while_the_machine_runs_on(files: MemoryFiles) -> None:
    epoch_file.remember_broker_epoch(files, PATH, 17, "monday")
    assert previous(files, boot="monday") == 17


def test_after_a_power_cut_only_a_clean_shutdown_proves_that_nothing_is_lost(files: MemoryFiles) -> None:
    epoch_file.remember_broker_epoch(files, PATH, 17, "monday")
    assert previous(files, boot="tuesday") == -1
    assert previous(files, boot="tuesday", is_clean=True) == 17


def test_without_a_boot_id_only_a_clean_shutdown_proves_that_nothing_is_lost(files: MemoryFiles) -> None:
    epoch_file.remember_broker_epoch(files, PATH, 17, None)
    assert previous(files, boot=None) == -1
    assert previous(files, boot=None, is_clean=True) == 17


def test_the_last_incarnation_counts_and_its_epoch_is_durable(files: MemoryFiles) -> None:
    for epoch in (17, 18):
        epoch_file.remember_broker_epoch(files, PATH, epoch, "monday")
    files.crash()
    assert previous(files) == 18


def test_a_full_disk_still_remembers_each_incarnation() -> None:
    """`up` restarts a node on a full disk again and again, and each start registers."""
    files = MemoryFiles(room_bytes=epoch_file.FILE_BYTES)
    files.mkdir(PATH)
    for epoch in (17, 18, 2**63 - 1):
        epoch_file.remember_broker_epoch(files, PATH, epoch, "0a4f1c6e-93c1-4a0b-8f4e-7d1b1e0c2a55")
        files.crash()
        assert previous(files, boot="0a4f1c6e-93c1-4a0b-8f4e-7d1b1e0c2a55") == epoch


def incarnation_of(files: MemoryFiles, *, previous_broker_epoch: int, dies: bool = False) -> bytes:
    """Start a node, which registers; return the incarnation that it names. It may die before it hears the answer."""
    asked: list[bytes] = []

    async def ask(request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        asked.append(request.incarnation_id)
        if dies:
            raise ConnectionError("killed")
        return BrokerRegistrationResponse(error_code=0, broker_epoch=18)

    machine: Any = SimpleNamespace(files=files, path=PATH, config=NodeConfig(), endpoints=[])
    registration = Registration(machine, Incarnation(1, -1), ask, Image)
    with suppress(ConnectionError):
        asyncio.run(registration.register(Identity("cluster", 1, ""), previous_broker_epoch))
    return asked[0]


def test_a_registration_that_was_begun_is_finished_by_the_next_start(files: MemoryFiles) -> None:
    """Otherwise a node that dies while it registers would lose its place, although it has lost no record."""
    epoch_file.remember_broker_epoch(files, PATH, 17, epoch_file.boot_id())
    begun = incarnation_of(files, previous_broker_epoch=17, dies=True)
    assert previous(files, boot=epoch_file.boot_id(), is_clean=True) == 17
    # A node that may have lost records does not finish it.
    assert incarnation_of(files, previous_broker_epoch=-1, dies=True) != begun
    assert incarnation_of(files, previous_broker_epoch=17) == begun
    assert previous(files, boot=epoch_file.boot_id(), is_clean=True) == 18
    assert incarnation_of(files, previous_broker_epoch=18) != begun


def test_a_file_of_an_older_version_is_replaced(files: MemoryFiles) -> None:
    checkpoint.write(
        files, f"{PATH}/{epoch_file.BROKER_EPOCH}", b'{"version": 0, "brokerEpoch": 17, "bootId": "monday"}'
    )
    assert previous(files) == 17
    epoch_file.remember_broker_epoch(files, PATH, 18, "monday")
    assert previous(files) == 18


def test_a_damaged_file_proves_nothing() -> None:
    cases = [b"", b"{", b"[]", b'{"version": 0, "brokerEpoch": "x", "bootId": "monday"}', b"\xff"]
    for damage in cases:
        with case(damage):
            files = MemoryFiles()
            file = files.open(f"{PATH}/{epoch_file.BROKER_EPOCH}")
            file.pwrite(damage, 0)
            file.close()
            assert previous(files, is_clean=True) == -1


def test_this_machine_has_a_boot_id_or_none() -> None:
    assert epoch_file.boot_id() == epoch_file.boot_id()
    assert epoch_file.boot_id() != ""
