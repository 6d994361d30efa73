"""Claims about voter sets and their bytes in the log."""

from raft_nodes import directory_id, voters

from minibroker.log.batch import Batch
from minibroker.log.control import ControlType, control_type
from minibroker.raft.control import add_voters, decode_leader_change, leader_change
from minibroker.raft.voters import Voter, VoterKey, VoterSet, decode_voters, encode_voters


def test_a_majority_is_more_than_half() -> None:
    assert [voters(*range(1, size + 1)).majority for size in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_a_node_with_another_directory_is_another_voter() -> None:
    found = voters(1, 2, 3)
    assert VoterKey(2, directory_id(2)) in found
    assert VoterKey(2, directory_id(2, 1)) not in found
    assert VoterKey(4, directory_id(4)) not in found


def test_a_voter_whose_directory_is_not_known_may_have_any() -> None:
    found = VoterSet.of([Voter(VoterKey(1))])
    assert VoterKey(1, directory_id(1, 7)) in found
    assert found.unbound(VoterKey(1, directory_id(1, 7)))
    bound = found.with_voter(Voter(VoterKey(1, directory_id(1))))
    assert not bound.unbound(VoterKey(1, directory_id(1)))
    assert VoterKey(1, directory_id(1, 7)) not in bound


def test_a_change_is_another_set() -> None:
    old = voters(1, 2, 3)
    assert list(old.without(2)) == [1, 3]
    assert list(old.with_voter(Voter(VoterKey(9)))) == [1, 2, 3, 9]
    assert list(old) == [1, 2, 3]


def test_the_record_of_the_voters_has_kafkas_bytes() -> None:
    """VotersRecord.json: a version, voters with id, directory, endpoints and the versions they read (KIP-853)."""
    found = VoterSet.of([Voter(VoterKey(7, bytes(range(16))), "localhost", 9093)])
    expected = (
        b"\0\0"  # version
        b"\2"  # one voter: a compact array's length is one more
        b"\0\0\0\7" + bytes(range(16)) + b"\2"  # its id, its directory, one endpoint
        b"\x0bCONTROLLER"
        b"\x0alocalhost" + (9093).to_bytes(2, "big") + b"\0"  # no tagged fields
        b"\0\0\0\1\0"  # reads versions 0 to 1
        b"\0\0"
    )
    assert encode_voters(found) == expected
    assert decode_voters(expected) == found


def test_the_record_of_a_new_leader_has_kafkas_bytes() -> None:
    """LeaderChangeMessage.json, version 0, the only one that Kafka's tools read: leader, voters, granting voters."""
    batch = Batch(bytes(leader_change(1, voters(1, 2), [1], timestamp=5).build()))
    assert batch.header.is_control
    (record,) = batch.records()
    assert record.key == b"\0\0\0\2"
    assert control_type(record) == ControlType.LEADER_CHANGE
    one, two = (b"\0\0\0" + bytes([it]) + b"\0" for it in (1, 2))
    assert record.value == b"\0\0" + b"\0\0\0\1" + b"\3" + one + two + b"\2" + one + b"\0"
    read = decode_leader_change(record.value)
    assert (read.leader_id, [it.voter_id for it in read.voters]) == (1, [1, 2])


def test_a_log_with_leader_changes_of_version_1_is_still_read() -> None:
    """Earlier releases wrote version 1, which adds the directories of the voters."""
    one, two = (b"\0\0\0" + bytes([it]) + directory_id(it) + b"\0" for it in (1, 2))
    read = decode_leader_change(b"\0\1" + b"\0\0\0\1" + b"\3" + one + two + b"\2" + one + b"\0")
    assert (read.version, read.leader_id) == (1, 1)
    assert [(it.voter_id, bytes(it.voter_directory_id)) for it in read.voters] == [
        (1, directory_id(1)),
        (2, directory_id(2)),
    ]
    assert [it.voter_id for it in read.granting_voters] == [1]


def test_voters_are_a_control_record_of_type_6() -> None:
    builder = add_voters(leader_change(1, voters(1), [1], timestamp=0), voters(1), timestamp=0)
    _leader, record = Batch(bytes(builder.build())).records()
    assert record.key == b"\0\0\0\6"
    assert decode_voters(record.value or b"") == voters(1)
