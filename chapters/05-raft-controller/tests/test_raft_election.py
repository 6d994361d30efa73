"""Claims about the epoch and the vote of a voter: the file `quorum-state`."""

import json
from contextlib import suppress
from random import Random

import pytest
from cases import case
from raft_nodes import directory_id

from minibroker.log.errors import LogError
from minibroker.log.memory import MemoryFiles
from minibroker.raft.election import NO_NODE, Ballot, Election, decode, encode
from minibroker.raft.voters import VoterKey
from minibroker.simulation.disk import Disk
from minibroker.simulation.process import Died

KEY = VoterKey(2, directory_id(2))


def test_the_file_has_kafkas_format() -> None:
    """QuorumStateData.json, version 1, as Kafka's JSON converter writes it."""
    key = VoterKey(2, bytes(range(16)))
    expected = (
        b'{"leaderId":-1,"leaderEpoch":7,"votedId":2,"votedDirectoryId":"AAECAwQFBgcICQoLDA0ODw","data_version":1}'
    )
    assert encode(Election(7, NO_NODE, key)) == expected
    assert decode(expected, "quorum-state") == Election(7, NO_NODE, key)
    no_vote = json.loads(encode(Election(3, 1)))
    assert (no_vote["votedId"], no_vote["votedDirectoryId"]) == (-1, "AAAAAAAAAAAAAAAAAAAAAA")
    assert decode(encode(Election(3, 1)), "") == Election(3, 1)


def test_a_file_that_cannot_be_read_is_an_error() -> None:
    for data in (b"", b"{", b"[]", b"{}", b'{"leaderId":1,"leaderEpoch":1,"votedId":2}'):
        with case(data), pytest.raises(LogError, match="quorum-state cannot be read"):
            decode(data, "quorum-state")


def test_an_epoch_never_decreases_and_a_vote_never_changes() -> None:
    ballot = Ballot(MemoryFiles(), "d")
    ballot.write(Election(3, NO_NODE, KEY))
    with pytest.raises(AssertionError, match="go back from 3 to 2"):
        ballot.write(Election(2))
    with pytest.raises(AssertionError, match="already"):
        ballot.write(Election(3, NO_NODE, VoterKey(1, directory_id(1))))
    ballot.write(Election(3, 2, KEY))
    with pytest.raises(AssertionError, match="leads epoch 3 already"):
        ballot.write(Election(3, 1, KEY))


def test_a_vote_survives_a_power_cut() -> None:
    files = MemoryFiles()
    files.mkdir("d")
    Ballot(files, "d").write(Election(3, NO_NODE, KEY))
    files.crash(Random(1))
    assert Ballot(files, "d").election == Election(3, NO_NODE, KEY)


def test_a_vote_that_was_read_after_a_crash_survives_a_power_cut() -> None:
    """A voter may repeat a vote that it has read without writing it again, so the read must make it durable."""
    for changes in range(8):
        with case(f"the disk died after {changes} changes"):
            disk = Disk(Random(changes))
            disk.mkdir("d")
            disk.fsync_directory("")
            Ballot(disk, "d").write(Election(1))
            disk.die_after(changes)
            with suppress(Died):
                Ballot(disk, "d").write(Election(3, NO_NODE, KEY))
            disk.kill()
            read = Ballot(disk, "d").election
            disk.cut_power()
            assert Ballot(disk, "d").election == read
