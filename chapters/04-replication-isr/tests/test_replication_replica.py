"""A replica as the handlers and the driver use it: acknowledgements, what readers see, and changes of role.

The stage of the scenarios plays what happens between nodes; the tests then ask the replicas themselves.
"""

from collections.abc import Hashable
from dataclasses import replace

import pytest
from cases import case
from replication_nodes import NAME, ReplicaNode, batch_of, contents
from replication_stage import Stage

from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.errors import LogOffline
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import NO_LEADER, PartitionImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import (
    ACKS_ALL,
    CONSUMER,
    Appended,
    EpochEnd,
    Found,
    LocalPartition,
    LogEnd,
    Reader,
)
from minibroker.replication.follower import Fetched, Position
from minibroker.replication.leader import PROPOSAL_RETRY_MS, Altered
from minibroker.replication.replica import Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode


class Play:
    """A stage whose steps are given one by one."""

    def __init__(self, *steps: str) -> None:
        self.stage = Stage()
        self(*steps)

    def __call__(self, *steps: str) -> str:
        return self.stage.play("\n".join(f"> {step}" for step in steps))

    def node(self, node_id: int) -> ReplicaNode:
        return self.stage.nodes[node_id]

    def __getitem__(self, node_id: int) -> Replica:
        return self.node(node_id).replica

    def local(self, node_id: int) -> LocalPartition:
        return self.node(node_id).local


def append(partition: LocalPartition, *values: bytes, acks: int = ACKS_ALL, **producer: int) -> Appended:
    return partition.append(memoryview(batch_of(*values or (b"v",), **producer)), acks=acks, now_ms=0)


def verdict(replica: Replica, appended: Appended, acks: int = ACKS_ALL) -> ErrorCode | None:
    return replica.verdict(appended, acks=acks)


def refused(call: object, *arguments: object, **named: object) -> ErrorCode:
    assert callable(call)
    with pytest.raises(Refused) as error:
        call(*arguments, **named)
    return error.value.code


def values_read(partition: LocalPartition, offset: int, reader: Reader = CONSUMER) -> list[bytes | None]:
    found = partition.read(offset, bytes_max=1 << 20, reader=reader).read()
    return [record.value for batch in batches(found) for record in batch.records()]


# Acknowledgements -----------------------------------------------------------------------------------------------------


def test_a_batch_is_acknowledged_when_every_replica_in_sync_has_it() -> None:
    play = Play("nodes 1 2 3")
    appended = append(play.local(1))
    assert verdict(play[1], appended) is None
    play("fetch 2", "fetch 2", "fetch 3")
    assert verdict(play[1], appended) is None
    play("fetch 3")
    assert verdict(play[1], appended) is ErrorCode.NONE


def test_without_acks_all_a_producer_does_not_wait() -> None:
    for acks in [0, 1]:
        with case(acks):
            play = Play("nodes 1 2")
            assert verdict(play[1], append(play.local(1), acks=acks), acks) is ErrorCode.NONE


def test_a_leader_that_is_the_only_one_in_sync_acknowledges_at_once() -> None:
    play = Play("nodes 1")
    assert verdict(play[1], append(play.local(1))) is ErrorCode.NONE


def test_a_leader_that_was_deposed_acknowledges_nothing() -> None:
    play = Play("nodes 1 2")
    appended = append(play.local(1))
    play("elect 2", "tell 1")
    assert verdict(play[1], appended) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_was_deposed_in_between_does_not_acknowledge_earlier_batches() -> None:
    """The log may have been truncated in between: another record may be at that offset."""
    play = Play("nodes 1 2")
    lost = append(play.local(1), b"lost")
    play("elect 2", "tell", "produce other", "fetch 1", "fetch 1", "elect 1", "tell", "fetch 2")
    assert contents(play[1]) == [(0, 1, b"other")]
    assert play[1].high_watermark >= lost.next_offset
    assert verdict(play[1], lost) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_leads_on_in_a_new_epoch_acknowledges_earlier_batches() -> None:
    play = Play("nodes 1 2")
    appended = append(play.local(1))
    play("elect 2", "elect 1", "tell 1")
    assert play[1].leader_epoch == 2
    assert verdict(play[1], appended) is None
    play("tell 2", "fetch 2", "fetch 2")
    assert verdict(play[1], appended) is ErrorCode.NONE


def test_a_duplicate_waits_for_the_watermark_like_the_first_time() -> None:
    """Otherwise a retry would be acknowledged although the batch is not replicated."""
    play = Play("nodes 1 2")
    first = append(play.local(1), producer_id=7, sequence=0)
    again = append(play.local(1), producer_id=7, sequence=0)
    assert (again.base_offset, again.next_offset) == (first.base_offset, first.next_offset)
    assert play[1].log.log_end_offset == 1
    assert verdict(play[1], again) is None
    play("fetch 2", "fetch 2")
    assert verdict(play[1], again) is ErrorCode.NONE


def test_the_next_leader_acknowledges_a_duplicate_when_it_is_replicated() -> None:
    play = Play("nodes 1 2", "produce a as 7:0", "fetch 2", "elect 2", "tell")
    again = append(play.local(2), b"a", producer_id=7, sequence=0)
    assert (again.base_offset, again.leader_epoch) == (0, 1)
    assert verdict(play[2], again) is None
    play("fetch 1")
    assert verdict(play[2], again) is ErrorCode.NONE


# Enough replicas ------------------------------------------------------------------------------------------------------


def test_with_too_few_in_sync_a_batch_is_refused_before_it_is_written() -> None:
    play = Play("nodes 1 2 3 min.insync.replicas=2", "produce a", "tick 31000", "alter 1")
    assert play.stage.authority.partition.isr == (1,)
    assert refused(append, play.local(1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert play[1].log.log_end_offset == 1


def test_without_acks_all_a_batch_is_written_but_not_visible() -> None:
    """KIP-966: the watermark waits."""
    play = Play("nodes 1 2 min.insync.replicas=2", "produce a", "tick 31000", "alter 1")
    append(play.local(1), b"b", acks=1)
    assert (play[1].log.log_end_offset, play[1].high_watermark) == (2, 0)
    assert values_read(play.local(1), 0) == []


def test_a_producer_is_told_if_too_few_replicas_are_left_after_the_append() -> None:
    play = Play("nodes 1 2 min.insync.replicas=2")
    appended = append(play.local(1))
    play("fetch 2", "fetch 2")
    assert verdict(play[1], appended) is ErrorCode.NONE
    append(play.local(1), b"more", acks=1)
    play("tick 31000", "alter 1")
    assert verdict(play[1], appended) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_partition_with_fewer_replicas_than_the_minimum_needs_all_of_them() -> None:
    play = Play("nodes 1 2 min.insync.replicas=3")
    appended = append(play.local(1))
    play("fetch 2", "fetch 2")
    assert verdict(play[1], appended) is ErrorCode.NONE


# What a consumer sees -------------------------------------------------------------------------------------------------


def test_a_consumer_reads_to_the_watermark_and_a_follower_to_the_end() -> None:
    play = Play("nodes 1 2", "produce a", "fetch 2", "fetch 2", "produce b")
    assert values_read(play.local(1), 0) == [b"a"]
    assert values_read(play.local(1), 1) == []
    assert values_read(play.local(1), 0, Reader(2, play.node(2).broker_epoch)) == [b"a", b"b"]
    assert (play[1].high_watermark, play.local(1).last_stable_offset, play[1].log.log_end_offset) == (1, 1, 2)


def test_a_search_by_time_finds_only_replicated_records() -> None:
    play = Play("nodes 1 2", "produce a", "fetch 2", "fetch 2")
    builder = BatchBuilder()
    builder.append(timestamp=500, key=None, value=b"b")
    play.local(1).append(memoryview(builder.build()), acks=1, now_ms=0)
    assert play.local(1).find_time(400, reader=CONSUMER) == Found()
    assert play.local(1).find_max_timestamp(reader=CONSUMER) == Found()
    play("fetch 2", "fetch 2")
    assert play.local(1).find_time(400, reader=CONSUMER) == Found(1, 500, 0)
    assert play.local(1).find_max_timestamp(reader=CONSUMER) == Found(1, 500, 0)


def test_an_offset_is_found_with_the_epoch_of_its_record() -> None:
    """KIP-320: a consumer uses it later to notice a truncation."""
    play = Play("nodes 1 2", "produce a", "fetch 2", "fetch 2", "elect 2", "tell", "fetch 1", "produce b", "fetch 1")
    play("fetch 1")
    assert play.local(2).find_earliest() == Found(0, -1, 0)
    assert play.local(2).find_latest(reader=CONSUMER) == Found(2, -1, 1)


def new_leader() -> Play:
    """Node 2 has record a, which consumers have read, but its watermark is still below it."""
    play = Play("nodes 1 2", "produce a", "fetch 2", "fetch 2 held", "elect 2", "tell")
    assert (play[1].high_watermark, play[2].high_watermark, play[2].log.log_end_offset) == (1, 0, 1)
    return play


def test_a_new_leader_refuses_an_end_offset_that_might_go_back() -> None:
    """KIP-207."""
    play = new_leader()
    assert refused(play.local(2).find_latest, reader=CONSUMER) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert refused(play.local(2).find_time, 0, reader=CONSUMER) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert refused(play.local(2).find_max_timestamp, reader=CONSUMER) is ErrorCode.OFFSET_NOT_AVAILABLE
    play("fetch 1")
    assert play.local(2).find_latest(reader=CONSUMER) == Found(1, -1, 1)
    assert play.local(2).find_time(0, reader=CONSUMER).offset == 0


def test_a_new_leader_answers_what_cannot_go_back() -> None:
    """KIP-207: the log start, a time after all records, and everything to a replica."""
    play = new_leader()
    assert play.local(2).find_earliest().offset == 0
    assert play.local(2).find_time(1000, reader=CONSUMER) == Found()
    assert play.local(2).find_latest(reader=Reader(replica_id=1)) == Found(1, -1, 1)


# Followers ------------------------------------------------------------------------------------------------------------


def test_only_a_follower_of_this_partition_may_read_as_a_replica() -> None:
    play = Play("nodes 1 2", "produce a")
    for reader, node_id in [(Reader(9), 1), (Reader(1), 1), (Reader(1), 2)]:
        code = refused(play.local(node_id).read, 0, bytes_max=100, reader=reader)
        assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_of_an_earlier_incarnation_is_refused() -> None:
    """KIP-903: the node may have lost those records."""
    play = Play("nodes 1 2", "produce a", "fetch 2")
    earlier = play.node(2).broker_epoch
    play("cut-power 2", "start 2", "tell 1")
    code = refused(play.local(1).read, 1, bytes_max=100, reader=Reader(2, earlier))
    assert code is ErrorCode.STALE_BROKER_EPOCH
    assert play.node(1).outbox == []


def test_a_fetch_beyond_the_log_does_not_count() -> None:
    play = Play("nodes 1 2", "produce a")
    assert refused(play.local(1).read, 2, bytes_max=100, reader=Reader(2)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert play[1].high_watermark == 0


def test_a_reader_with_an_unknown_epoch_is_out_of_range() -> None:
    play = Play("nodes 1 2", "produce a")
    assert refused(play[1].diverging_epoch, 1, last_fetched_epoch=3) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert play[1].diverging_epoch(1, last_fetched_epoch=0) is None
    assert play[1].diverging_epoch(2, last_fetched_epoch=0) == EpochEnd(0, 1)
    assert play[1].end_of_epoch(0) == EpochEnd(0, 1)
    assert play[1].end_of_epoch(3) == EpochEnd(-1, -1)


def test_a_follower_that_has_caught_up_is_proposed_once() -> None:
    play = Play("nodes 1 2 3", "produce a", "fetch 2", "fetch 2", "tick 31000", "alter 1", "tell")
    assert play.stage.authority.partition.isr == (1, 2)
    play("fetch 3", "fetch 3", "fetch 3")
    (order,) = play.node(1).outbox
    assert (order.name, order.proposal.members) == (NAME, (1, 2, 3))
    assert [epoch for _node, epoch in order.proposal.isr] == [play.node(it).broker_epoch for it in (1, 2, 3)]


def test_the_removal_of_a_lagging_follower_is_proposed_until_it_is_answered() -> None:
    play = Play("nodes 1 2", "produce a", "tick 30000")
    assert play.node(1).outbox == []
    play("tick 1")
    (first,) = play.node(1).outbox
    assert first.proposal.members == (1,)
    play(f"tick {PROPOSAL_RETRY_MS - 1}")
    assert play.node(1).outbox == [first]
    play("tick 1")
    assert play.node(1).outbox == [first, first]
    play("alter 1", f"tick {PROPOSAL_RETRY_MS}")
    assert play.node(1).outbox == []
    assert play[1].high_watermark == 1


def test_a_follower_does_nothing_when_time_passes() -> None:
    play = Play("nodes 1 2", "produce a", "tick 31000")
    assert play.node(2).outbox == []


def test_a_deposed_leader_ignores_the_answer_to_its_proposal() -> None:
    play = Play("nodes 1 2", "produce a", "tick 31000")
    (order,) = play.node(1).outbox
    play("elect 2", "tell")
    play[1].on_altered(order.proposal, Altered(ErrorCode.NONE, (1,), 9))
    assert play[1].leading is None
    assert play[1].partition_epoch == 1


# Answers to a follower ------------------------------------------------------------------------------------------------


def test_a_followers_watermark_is_never_beyond_its_own_log() -> None:
    play = Play("nodes 1 2 3 min.insync.replicas=1", "produce a", "fetch 2", "fetch 2", "tick 31000", "alter 1", "tell")
    play("produce b", "fetch 2", "fetch 2")
    assert play[1].high_watermark == 2
    position = play[3].position()
    assert position is not None
    fetched = play.node(3).fetch(play.node(1), position, 0, bytes_max=1)
    assert fetched.high_watermark == 2
    play[3].on_fetched(fetched)
    assert (play[3].log.log_end_offset, play[3].high_watermark) == (1, 1)


def test_a_followers_watermark_does_not_go_back_to_its_leaders() -> None:
    """A new leader's watermark may be smaller; acknowledged records stay visible."""
    play = Play("nodes 1 2 3", "produce a", "fetch 2", "fetch 3", "fetch 2", "fetch 3", "fetch 3", "elect 2", "tell")
    assert (play[2].high_watermark, play[3].high_watermark) == (0, 1)
    play("fetch 3")
    assert play[3].high_watermark == 1


def test_a_watermark_goes_back_only_with_the_log() -> None:
    """An unclean election gives up acknowledged records."""
    play = Play("nodes 1 2 min.insync.replicas=1", "produce a", "tick 31000", "alter 1", "tell")
    assert play[1].high_watermark == 1
    play("elect 2 unclean", "tell", "produce b", "fetch 1")
    assert (play[1].log.log_end_offset, play[1].high_watermark) == (0, 0)


def test_a_late_answer_is_ignored() -> None:
    play = Play("nodes 1 2", "produce a", "fetch 2 held", "fetch 2", "produce b")
    late = play.stage.held[2]
    assert not play[2].on_fetched(late)
    assert contents(play[2]) == [(0, 0, b"a")]
    # It is ignored as well by a replica that leads now or has another leader.
    play("elect 2", "tell", "elect 1", "tell")
    assert not play[2].on_fetched(late)
    assert contents(play[2]) == [(0, 0, b"a")]


def test_after_an_error_a_follower_waits() -> None:
    play = Play("nodes 1 2", "produce a")
    position = play[2].position()
    assert position is not None
    assert not play[2].on_fetched(Fetched(position, ErrorCode.FENCED_LEADER_EPOCH))
    assert play[2].position() == position


def test_a_follower_that_is_out_of_range_asks_where_the_log_starts() -> None:
    play = Play("nodes 1 2", "produce a")
    position = play[2].position()
    assert position is not None
    assert play[2].on_fetched(Fetched(position, ErrorCode.OFFSET_OUT_OF_RANGE))
    assert play[2].position() == position._replace(is_lost=True)
    # An answer to its earlier fetch is late.
    play[2].on_start(position, 7)
    assert play[2].log.log_start_offset == 0
    play[2].on_start(position._replace(is_lost=True), 7)
    assert (play[2].log.log_start_offset, play[2].high_watermark, play[2].log.log_end_offset) == (7, 7, 7)
    assert play[2].position() == position._replace(fetch_offset=7, log_start_offset=7)
    # Without that error the answer is ignored.
    play[2].on_start(position._replace(fetch_offset=7, log_start_offset=7), 9)
    assert play[2].log.log_start_offset == 7


def test_an_empty_log_begins_where_the_leaders_begins_even_if_that_is_earlier() -> None:
    """After an unclean election the leader's log may end before ours starts."""
    play = Play("nodes 1 2", "produce a")
    for start in (7, 3):
        position = play[2].position()
        assert position is not None
        play[2].on_fetched(Fetched(position, ErrorCode.OFFSET_OUT_OF_RANGE))
        play[2].on_start(position._replace(is_lost=True), start)
        assert (play[2].log.log_start_offset, play[2].log.log_end_offset) == (start, start)


def test_a_follower_that_has_the_leaders_start_keeps_its_log() -> None:
    play = Play("nodes 1 2", "produce a", "fetch 2")
    position = play[2].position()
    assert position is not None
    play[2].on_fetched(Fetched(position, ErrorCode.OFFSET_OUT_OF_RANGE))
    play[2].on_start(position._replace(is_lost=True), 1)
    assert contents(play[2]) == [(0, 0, b"a")]
    assert play[2].position() == position


def test_a_log_whose_epochs_are_all_later_is_emptied() -> None:
    """The logs diverge before the start of the follower's log, so no record of it is in the leader's."""
    play = Play("nodes 1 2 min.insync.replicas=1", "produce a b", "fetch 2", "fetch 2", "produce c", "fetch 2")
    play("fetch 2", "fetch 2", "delete 1 2", "fetch 2")
    assert (play[2].log.log_start_offset, play[2].log.log_end_offset) == (2, 3)
    position = play[2].position()
    assert position is not None
    assert play[2].on_fetched(Fetched(position, diverging=EpochEnd(-1, 1)))
    assert (play[2].log.log_start_offset, play[2].high_watermark, play[2].log.log_end_offset) == (1, 1, 1)


def test_a_follower_deletes_the_records_that_its_leader_has_deleted_up_to_the_watermark() -> None:
    play = Play("nodes 1 2", "produce a", "produce b", "fetch 2", "fetch 2 held", "delete 1 2")
    position = play[2].position()
    assert position is not None
    fetched = play.node(2).fetch(play.node(1), position, 0)
    assert (fetched.high_watermark, fetched.log_start_offset, play[2].high_watermark) == (2, 2, 0)
    play[2].on_fetched(fetched._replace(high_watermark=1))
    assert (play[2].log.log_start_offset, play[2].high_watermark) == (1, 1)
    play("fetch 2")
    assert (play[2].log.log_start_offset, play[2].high_watermark) == (2, 2)


def test_a_follower_of_a_log_that_starts_within_a_batch_begins_with_that_batch() -> None:
    play = Play("nodes 1 2 3 min.insync.replicas=1", "produce a b c", "fetch 2", "tick 31000", "alter 1", "tell")
    play("delete 1 2")
    assert play[1].log.log_start_offset == 2
    play("fetch 3", "fetch 3", "fetch 3")
    assert contents(play[3]) == [(2, 0, b"c")]
    assert (play[3].log.log_start_offset, play[3].high_watermark, play[3].log.log_end_offset) == (2, 3, 3)


def test_a_follower_without_a_leader_or_a_disk_fetches_nothing() -> None:
    node = ReplicaNode(2, TopicConfig({}))
    assert node.replica.position() is None
    node.replica.on_partition(PartitionImage((1, 2), (1,), NO_LEADER, 1, 1), {}, 0)
    assert node.replica.position() is None
    node.replica.on_partition(PartitionImage((1, 2), (1,), 1, 2, 2), {}, 0)
    assert node.replica.position() == Position(1, 2, 0, -1, 0)
    node.files.fsync_error = OSError(5, "input/output error")
    node.replica.log.append(batch_of(b"v"))
    with pytest.raises(LogOffline, match="input/output error"):
        node.replica.log.flush()
    assert node.replica.position() is None


# Roles ----------------------------------------------------------------------------------------------------------------


def test_a_new_replica_neither_leads_nor_follows() -> None:
    node = ReplicaNode(1, TopicConfig({}))
    assert refused(node.local.check_leader) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused(append, node.local) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_with_another_epoch_is_told_whether_it_is_older_or_newer() -> None:
    """KIP-320."""
    play = Play("nodes 1 2", "elect 2", "tell")
    play.local(2).check_leader(1)
    play.local(2).check_leader()
    assert refused(play.local(2).check_leader, 0) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(play.local(2).check_leader, 2) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert refused(play.local(1).check_leader, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused(append, play.local(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_decision_that_comes_late_or_twice_is_ignored() -> None:
    play = Play("nodes 1 2")
    old, epochs = play.stage.authority.news
    play("elect 2", "tell", "produce a")
    leadership = play[2].leading
    play[2].on_partition(old, epochs, 0)
    play("tell 2")
    assert play[2].leading is leadership
    following = play[1].following
    play("tell 1")
    assert play[1].following is following


def test_a_change_of_the_in_sync_set_does_not_change_the_leader() -> None:
    play = Play("nodes 1 2 3", "produce a", "fetch 2", "tick 31000", "alter 1 unanswered")
    leading, following = play[1].leading, play[2].following
    assert leading is not None
    play("tell")
    assert play[1].leading is leading
    assert play[2].following is following
    assert leading.isr == play.stage.authority.partition.isr != (1, 2, 3)
    assert play[1].partition_epoch == play[2].partition_epoch == 1


def test_a_leader_learns_of_new_replicas_even_if_it_knows_that_partition_epoch() -> None:
    """The answer to its proposal came before the metadata, and does not name the replicas."""
    play = Play("nodes 1 2", "produce a", "tick 31000", "alter 1")
    image, epochs = play.stage.authority.news
    assert play[1].partition_epoch == image.partition_epoch
    play[1].on_partition(replace(image, replicas=(1, 2, 3)), epochs, 0)
    leading = play[1].leading
    assert leading is not None
    assert set(leading.followers) == {2, 3}


def test_a_leader_learns_of_a_new_incarnation_even_if_the_partition_is_unchanged() -> None:
    play = Play("nodes 1 2", "produce a")
    earlier = play.node(2).broker_epoch
    play("kill 2", "start 2", "tell 1")
    assert refused(play.local(1).read, 0, bytes_max=100, reader=Reader(2, earlier)) is ErrorCode.STALE_BROKER_EPOCH


def test_an_epoch_in_which_a_leader_wrote_nothing_is_forgotten() -> None:
    play = Play("nodes 1 2", "produce a", "fetch 2", "elect 2", "tell 2", "elect 1", "tell")
    position = play[2].position()
    assert position is not None
    assert position.last_fetched_epoch == 0
    assert [it.epoch for it in play[2].epochs.entries] == [0]


def test_a_new_leader_keeps_its_log_and_begins_its_epoch_after_it() -> None:
    play = Play("nodes 1 2", "produce a", "fetch 2", "elect 2", "tell 2")
    assert play[2].epochs.entries == [(0, 0), (1, 1)]
    leading = play[2].leading
    assert leading is not None
    assert leading.epoch_start_offset == 1
    append(play.local(2), b"b")
    assert contents(play[2]) == [(0, 0, b"a"), (1, 1, b"b")]


def test_a_retired_replica_answers_no_requests() -> None:
    play = Play("nodes 1 2")
    appended = append(play.local(1))
    play[1].retire()
    play[2].retire()
    assert verdict(play[1], appended) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused(append, play.local(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert play[2].position() is None
    play[1].tick(10**6)
    assert play.node(1).outbox == []


# Listeners ------------------------------------------------------------------------------------------------------------


class Heard:
    """A part of a node that works where a partition is led."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def on_leader(self, partition: TopicPartition, epoch: int) -> None:
        self.told.append(("leads", partition, epoch))

    def on_resigned(self, partition: TopicPartition) -> None:
        self.told.append(("resigned", partition))

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return told


def test_a_listener_is_told_when_its_node_begins_and_stops_to_lead() -> None:
    heard = Heard()
    replica = ReplicaNode(1, TopicConfig({}), listeners=[heard]).replica
    images = [
        (PartitionImage((1, 2), (1, 2), 1, 0, 0), [("leads", NAME, 0)]),
        (PartitionImage((1, 2), (1,), 1, 0, 1), []),  # another in-sync set
        (PartitionImage((1, 2), (1,), 1, 1, 2), [("leads", NAME, 1)]),  # a new epoch, without a pause
        (PartitionImage((1, 2), (1, 2), 2, 2, 3), [("resigned", NAME)]),
        (PartitionImage((1, 2), (1, 2), -1, 3, 4), []),  # it did not lead before
        (PartitionImage((1, 2), (1, 2), 1, 4, 5), [("leads", NAME, 4)]),
    ]
    for image, told in images:
        replica.on_partition(image, {1: 1, 2: 2}, 0)
        assert heard.take() == told
    replica.retire()
    replica.retire()
    assert heard.take() == [("resigned", NAME)]


# Waiting requests -----------------------------------------------------------------------------------------------------


class Woken:
    """A leader with one follower, and how often its waiting requests were woken."""

    def __init__(self) -> None:
        self.keys: list[Hashable] = []
        self.node = ReplicaNode(1, TopicConfig({}), wake=self.keys.append)
        self.image = PartitionImage((1, 2), (1, 2), 1, 0, 0)
        self.node.replica.on_partition(self.image, {1: 1, 2: 2}, 0)
        self.keys.clear()

    def take(self) -> bool:
        """Whether a request was woken since the last call."""
        assert set(self.keys) <= {NAME, LogEnd(NAME)}
        woken = NAME in self.keys
        self.keys.clear()
        return woken

    def fetch(self, offset: int, start: int = 0, *, is_retry: bool = False) -> None:
        reader = Reader(2, 2, log_start_offset=start, now_ms=0, is_retry=is_retry)
        self.node.local.read(offset, bytes_max=100, reader=reader)


def test_waiting_requests_are_woken_when_the_watermark_moves() -> None:
    woken = Woken()
    append(woken.node.local)
    assert woken.keys == [LogEnd(NAME)], "an append wakes only the fetches of followers"
    assert not woken.take()
    woken.fetch(0)
    woken.take()
    woken.fetch(1)
    assert woken.keys == [NAME], "a follower need not fetch again because the watermark has moved"
    assert woken.take()
    woken.fetch(1)
    assert not woken.take()


def test_a_waiting_fetch_does_not_repeat_its_followers_position() -> None:
    """Two fetches of one follower, the first on a dead connection, would wake each other for ever."""
    woken = Woken()
    append(woken.node.local)
    woken.fetch(1, start=0)
    woken.fetch(1, start=1)
    woken.take()
    woken.fetch(1, start=0, is_retry=True)
    woken.fetch(1, start=1, is_retry=True)
    assert not woken.take()
    # The leader does not move the follower back to where it was when it asked.
    woken.fetch(0, start=0, is_retry=True)
    assert woken.node.replica.leading is not None
    assert woken.node.replica.leading.followers[2].log_end_offset == 1


def test_waiting_requests_are_woken_when_the_last_follower_has_deleted_records() -> None:
    woken = Woken()
    append(woken.node.local)
    woken.fetch(1)
    assert woken.node.local.delete_records(1) == 1
    woken.take()
    assert woken.node.replica.low_watermark == 0
    woken.fetch(1, start=1)
    assert woken.take()
    assert woken.node.replica.low_watermark == 1


def test_waiting_requests_are_woken_when_the_partition_changes() -> None:
    cases = {
        "another in sync set": PartitionImage((1, 2), (1,), 1, 0, 1),
        "another leader": PartitionImage((1, 2), (1, 2), 2, 1, 1),
        "a new epoch": PartitionImage((1, 2), (1, 2), 1, 1, 1),
    }
    for name, change in cases.items():
        with case(name):
            woken = Woken()
            woken.node.replica.on_partition(change, {1: 1, 2: 2}, 0)
            assert woken.take()
            woken.node.replica.on_partition(change, {1: 1, 2: 2}, 0)
            assert not woken.take()


def test_waiting_requests_are_woken_when_the_replica_is_retired() -> None:
    woken = Woken()
    woken.node.replica.retire()
    assert woken.take()
