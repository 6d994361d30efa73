"""Groups of the new protocol: what a heartbeat does, and which ones are refused (KIP-848)."""

import pytest
from cases import case
from consumer_driver import REBALANCE_MS, SESSION_MS, ConsumerDriver, assigned_in, image_of, topic_id

from minibroker.groups.errors import GroupRefused
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.wire.codes import ErrorCode


def settled(*member_ids: str) -> ConsumerDriver:
    driver = ConsumerDriver()
    for member_id in member_ids:
        driver.join(member_id)
    driver.settle()
    return driver


def test_the_first_member_has_all_partitions_after_one_heartbeat() -> None:
    driver = ConsumerDriver()
    answer = driver.join("a")
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", 1)
    assert assigned_in(answer) == [0, 1, 2, 3]
    assert answer.heartbeat_interval_ms == driver.settings.consumer_heartbeat_interval_ms > 0
    assert driver.group.state.value == "Stable"


def test_a_partition_goes_to_its_new_owner_in_three_heartbeats() -> None:
    driver = settled("a")
    first = driver.join("b")
    assert (first.member_epoch, assigned_in(first)) == (2, [])
    told = driver.beat("a", 1)
    assert (told.member_epoch, assigned_in(told)) == (1, [0, 1])
    # The partitions are not free before the old owner has reported that it gave them up.
    assert assigned_in(driver.beat("b", 2)) is None
    assert driver.beat("a", 1, {"orders": [0, 1]}).member_epoch == 2
    assert assigned_in(driver.beat("b", 2)) == [2, 3]
    assert (driver.group.members["b"].previous_epoch, driver.group.members["b"].epoch) == (0, 2)
    assert driver.group.state.value == "Stable"


def test_a_member_that_is_giving_up_partitions_gets_no_new_target() -> None:
    # Trap 18: it would have to give up more with each change, and lose everything.
    driver = settled("a")
    driver.join("b")
    assert assigned_in(driver.beat("a", 1)) == [0, 1]
    driver.join("c")
    driver.join("d")
    assert assigned_in(driver.beat("a", 1)) is None
    assert assigned_in(driver.beat("a", 1, {"orders": [0, 1, 2, 3]})) is None
    assert driver.assigned("a") == [0, 1]
    driver.settle()
    assert sorted(len(driver.assigned(it)) for it in "abcd") == [1, 1, 1, 1]


def test_a_member_gives_up_a_topic_that_it_does_not_read_any_more_before_there_is_a_new_target() -> None:
    driver = ConsumerDriver(image_of(orders=2, users=2), consumer_assignment_interval_ms=60_000)
    driver.join("a", "orders", "users")
    driver.beat("a", 1, {"orders": [0, 1], "users": [0, 1]}, subscribed_topic_names=["orders"])
    assert (driver.group.epoch, driver.group.facts.target_epoch) == (2, 1)
    assert (driver.assigned("a", "orders"), driver.assigned("a", "users")) == ([0, 1], [])
    # The old target has the topic, but the member does not get it back.
    driver.beat("a", 1, {"orders": [0, 1]})
    assert (driver.assigned("a", "orders"), driver.assigned("a", "users")) == ([0, 1], [])


def test_a_member_that_is_giving_up_partitions_also_gives_up_a_topic_that_it_does_not_read_any_more() -> None:
    driver = ConsumerDriver(image_of(orders=4, users=4))
    driver.join("a", "orders", "users")
    driver.join("b", "orders")
    driver.alive("a")
    kept, given_up = driver.assigned("a"), {0, 1, 2, 3}.difference(driver.assigned("a"))
    assert given_up
    driver.beat("a", 1, None, subscribed_topic_names=["orders"])
    assert (driver.assigned("a"), driver.assigned("a", "users")) == (kept, [])
    # It must give up all of these, also those that it was told before.
    driver.beat("a", 1, {"orders": [0, 1, 2, 3]})
    driver.alive("b")
    assert (driver.group.members["a"].epoch, driver.assigned("b")) == (1, [])
    driver.settle()
    assert len(driver.assigned("a")) == len(driver.assigned("b")) == 2


def test_an_unchanged_assignment_is_sent_again_only_to_a_member_that_sends_everything() -> None:
    # Trap 19: a client that did not know the topic yet, or lost the answer, sends a full request.
    driver = settled("a")
    assert assigned_in(driver.beat("a", 1)) is None
    for fields in ({}, {"rebalance_timeout_ms": REBALANCE_MS}, {"subscribed_topic_names": ["orders"]}):
        with case(fields):
            assert assigned_in(driver.beat("a", 1, {}, **fields)) is None
    full = driver.beat("a", 1, {}, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["orders"])
    assert assigned_in(full) == [0, 1, 2, 3]
    by_regex = ConsumerDriver()
    by_regex.join("a", subscribed_topic_names=None, subscribed_topic_regex="ord.*")
    full = by_regex.beat("a", 1, {}, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_regex="ord.*")
    assert assigned_in(full) == [0, 1, 2, 3]


def test_topics_in_another_order_are_no_change() -> None:
    # Trap 20: the group epoch would grow with each heartbeat.
    driver = ConsumerDriver(image_of(orders=4, users=2))
    driver.join("a", "users", "orders")
    before = len(driver.log)
    for names in (["orders", "users"], ["users", "orders"], ["users", "orders", "users"]):
        driver.beat("a", 1, None, subscribed_topic_names=names)
    assert (driver.group.epoch, len(driver.log)) == (1, before)


def test_a_member_that_waits_for_partitions_of_others_writes_no_record_for_each_heartbeat() -> None:
    driver = ConsumerDriver()
    driver.join("a")
    driver.join("b")
    driver.alive("b")
    before = len(driver.log)
    for _again in range(3):
        assert driver.alive("b").error_code == ErrorCode.NONE
    assert len(driver.log) == before


def test_a_partition_that_a_member_gives_up_late_stays_with_its_new_owner() -> None:
    # Trap 35: releasing by partition instead of by owner gives it a second owner.
    driver = ConsumerDriver()
    driver.join("a", instance_id="i")
    driver.settle()
    driver.beat("a", -2, None, instance_id="i")
    driver.join("a2", instance_id="i")
    assert driver.assigned("a2") == [0, 1, 2, 3]
    assert set(driver.group.facts.owners[topic_id("orders")].values()) == {"a2"}
    # The compacted log may have the old member's tombstones after the new member's records.
    removals = [it for it in driver.log if it[1] is None]
    driver.log = [it for it in driver.log if it[1] is not None] + removals
    assert set(driver.replayed().facts.owners[topic_id("orders")].values()) == {"a2"}
    driver.join("b")
    driver.beat("a2", 2)
    assert driver.assigned("b") == []


def test_a_plain_heartbeat_writes_nothing() -> None:
    driver = settled("a", "b")
    before = len(driver.log)
    for member_id in ("a", "b"):
        answer = driver.beat(member_id, driver.group.members[member_id].epoch)
        assert assigned_in(answer) is None
    assert len(driver.log) == before


def test_a_step_that_the_log_refuses_changes_nothing() -> None:
    driver = settled("a")
    driver.refuses = True
    assert driver.take(driver.group.on_time(driver.image, driver.now_ms)) is None
    driver.beat("a", -1)
    driver.wait(SESSION_MS)
    assert (list(driver.group.members), driver.group.epoch) == (["a"], 1)
    # The member is gone when the log works again.
    driver.refuses = False
    driver.wait(1000)
    assert list(driver.group.members) == []


def test_a_member_leaves_and_its_partitions_go_to_the_others() -> None:
    driver = settled("a", "b")
    assert driver.beat("b", -1).member_epoch == -1
    driver.settle()
    assert driver.assigned("a") == [0, 1, 2, 3]
    driver.beat("a", -1)
    assert driver.group.state.value == "Empty"
    assert driver.join("c").member_epoch > 3


def test_a_static_member_comes_back_to_its_partitions_and_the_others_notice_nothing() -> None:
    driver = ConsumerDriver()
    driver.join("a", instance_id="i")
    driver.join("b")
    driver.settle()
    before, epoch = driver.assigned("a"), driver.group.epoch
    assert driver.beat("a", -2, None, instance_id="i").member_epoch == -2
    answer = driver.join("a2", instance_id="i")
    assert (assigned_in(answer), driver.group.epoch) == (before, epoch)
    assert answer.member_epoch == epoch
    assert driver.beat("a", epoch, None, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_has_left_has_also_left_the_partitions_that_it_was_to_give_up() -> None:
    driver = ConsumerDriver()
    driver.join("a", instance_id="i")
    driver.join("b")
    assert assigned_in(driver.beat("a", 1)) == [0, 1]
    assert driver.assigned("b") == []
    driver.beat("a", -2, None, instance_id="i")
    assert assigned_in(driver.beat("b", 2)) == [2, 3]


def test_a_static_member_that_stays_away_loses_its_partitions_with_its_session() -> None:
    driver = ConsumerDriver()
    driver.join("a", instance_id="i")
    driver.beat("a", -2, None, instance_id="i")
    driver.wait(SESSION_MS)
    assert driver.group.state.value == "Empty"


def test_a_static_member_cannot_join_before_the_old_one_has_left() -> None:
    driver = ConsumerDriver()
    driver.join("a", instance_id="i")
    assert driver.join("a2", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    # The same process may join again, for example because its answer was lost. That changes nothing.
    written = len(driver.log)
    assert assigned_in(driver.join("a", instance_id="i")) == [0, 1, 2, 3]
    assert len(driver.log) == written


def test_wrong_epochs_are_fenced_and_the_previous_one_is_not() -> None:
    driver = settled("a")
    driver.join("b")
    driver.settle()
    member = driver.group.members["a"]
    assert (member.previous_epoch, member.epoch) == (1, 2)
    for epoch, owned, code in (
        (3, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, {"orders": [0, 1, 2]}, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, {"orders": [0]}, ErrorCode.NONE),
        (2, None, ErrorCode.NONE),
    ):
        with case(epoch, owned):
            assert driver.beat("a", epoch, owned).error_code == code
    assert driver.beat("a", 3).error_message == "member a sent epoch 3, but its epoch is 2"
    assert driver.beat("z", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.beat("z", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_that_contradict_themselves_are_invalid() -> None:
    driver = ConsumerDriver(consumer_max_size=1)
    join = {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["orders"]}
    for member_id, epoch, owned, fields in (
        ("a", 0, {}, {"subscribed_topic_names": ["orders"]}),
        ("a", 0, None, join),
        ("a", 0, {"orders": [0]}, join),
        ("a", 0, {}, {"rebalance_timeout_ms": 1}),
        ("a", 0, {}, {**join, "instance_id": " "}),
        ("a", 0, {}, {**join, "rack_id": ""}),
        ("", 0, {}, join),
        ("", 1, None, {}),
        ("a", -3, None, {}),
        ("a", -2, None, {}),
    ):
        with case(member_id, epoch, owned, fields):
            assert driver.beat(member_id, epoch, owned, **fields).error_code == ErrorCode.INVALID_REQUEST
    assert driver.join("a", server_assignor="best").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    wrong = driver.join("a", subscribed_topic_regex="(")
    assert wrong.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not driver.log
    assert driver.join("a").error_code == 0
    assert driver.join("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_without_an_id_gets_one_in_version_0() -> None:
    assert ConsumerDriver().join("", version=0).member_id == "client-1"
    assert ConsumerDriver().join("", version=0, instance_id="i").member_id == "i-1"


def test_a_silent_member_is_removed_after_its_session() -> None:
    driver = settled("a", "b")
    driver.wait(SESSION_MS - 1)
    driver.alive("a")
    driver.wait(1)
    assert list(driver.group.members) == ["a"]
    driver.settle()
    assert driver.assigned("a") == [0, 1, 2, 3]


def test_a_member_that_does_not_give_up_partitions_is_fenced_after_its_rebalance_timeout() -> None:
    driver = settled("a")
    driver.join("b")
    for _ in range(REBALANCE_MS // 20_000):
        driver.beat("a", 1)
        driver.beat("b", 2)
        driver.wait(20_000)
    assert list(driver.group.members) == ["b"]
    assert driver.beat("a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    driver.settle()
    assert driver.assigned("b") == [0, 1, 2, 3]


def test_changes_within_the_assignment_interval_share_one_target() -> None:
    driver = ConsumerDriver(consumer_assignment_interval_ms=1000)
    driver.join("a")
    for member_id in ("b", "c", "d"):
        driver.join(member_id)
    assert (driver.group.epoch, driver.group.facts.target_epoch) == (4, 1)
    assert driver.group.state.value == "Assigning"
    driver.wait(1000)
    driver.settle()
    assert driver.group.facts.target_epoch == 4
    assert [driver.assigned(it) for it in "abcd"].count([]) == 0


def test_a_topic_that_grows_or_goes_or_comes_back_changes_the_assignment() -> None:
    driver = settled("a", "b")
    for offset, counts, expected in ((2, {"orders": 6}, 6), (3, {}, 0), (4, {"orders": 2}, 2)):
        with case(counts):
            driver.image, epoch = image_of(offset, **counts), driver.group.epoch
            driver.settle()
            assert driver.group.epoch == epoch + 1
            assert len(driver.assigned("a")) == len(driver.assigned("b")) == expected // 2
            assert driver.group.state.value == "Stable"


def test_a_change_of_a_topic_that_the_log_refuses_is_made_by_a_later_heartbeat() -> None:
    driver = settled("a")
    driver.image = image_of(2, orders=6)
    driver.refuses = True
    driver.alive("a")
    assert len(driver.assigned("a")) == 4
    driver.refuses = False
    driver.settle()
    assert len(driver.assigned("a")) == 6


def test_a_topic_that_nobody_reads_changes_nothing() -> None:
    driver = settled("a")
    driver.image = image_of(2, orders=4, users=1)
    driver.settle()
    assert driver.group.epoch == 1


def test_a_regular_expression_finds_topics_again_when_they_change_but_not_too_often() -> None:
    driver = ConsumerDriver(image_of(orders_eu=1, users=1))
    driver.join("a", subscribed_topic_names=[], subscribed_topic_regex="orders.*")
    assert (driver.assigned("a", "orders_eu"), driver.assigned("a", "users")) == ([0], [])
    driver.image = image_of(2, orders_eu=1, orders_us=1, users=1)
    driver.settle()
    assert driver.assigned("a", "orders_us") == []
    driver.now_ms += 10_000
    driver.settle()
    assert driver.assigned("a", "orders_us") == [0]
    assert driver.group.is_subscribed("orders_us")
    # An empty expression means none. The topics of an expression that nobody uses are forgotten.
    driver.beat("a", driver.group.members["a"].epoch, None, subscribed_topic_regex="")
    driver.settle()
    assert (driver.group.facts.regexes, driver.group.members["a"].assigned) == ({}, {})


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    driver = ConsumerDriver(image_of(orders=3, users=3))
    for member_id, assignor in (("a", "range"), ("b", "range"), ("c", None)):
        driver.join(member_id, "orders", "users", server_assignor=assignor)
    driver.settle()
    # `range` gives equal topics in equal parts.
    assert all(driver.assigned(it, "orders") == driver.assigned(it, "users") for it in "abc")
    assert driver.group.describe(driver.image).assignor_name == "range"


def test_describe_shows_epochs_assignment_and_target() -> None:
    driver = settled("a")
    driver.join("b")
    group = driver.group.describe(driver.image)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 2, 2)
    first, second = group.members
    assert (first.member_epoch, second.member_epoch) == (1, 2)
    assert [it.partitions for it in first.assignment.topic_partitions] == [[0, 1, 2, 3]]
    assert [it.partitions for it in first.target_assignment.topic_partitions] == [[0, 1]]
    assert [it.partitions for it in second.target_assignment.topic_partitions] == [[2, 3]]


def test_describe_shows_who_a_member_is_also_after_heartbeats_that_do_not_say_it() -> None:
    driver = ConsumerDriver()
    driver.join("a", instance_id="i", rack_id="r")
    driver.beat("a", 1, None, subscribed_topic_names=["users"])
    (member,) = driver.group.describe(driver.image).members
    assert (member.instance_id, member.rack_id) == ("i", "r")
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")


def commit(driver: ConsumerDriver, member_id: str, epoch: int, partition: int, version: int = 9) -> ErrorCode:
    part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
    request = OffsetCommitRequest(
        group_id="g",
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[OffsetCommitRequestTopic(name="orders", partitions=[part])],
    )
    try:
        driver.group.check_commit(request, version, driver.image)
    except GroupRefused as refused:
        return refused.code
    return ErrorCode.NONE


def test_a_commit_needs_the_epoch_in_which_the_member_had_the_partition() -> None:
    driver = settled("a")
    driver.join("b")
    driver.settle()
    for member_id, epoch, partition, version, code in (
        ("a", 2, 0, 9, ErrorCode.NONE),
        ("a", 1, 0, 9, ErrorCode.NONE),  # it has had 0 since epoch 1 (KIP-1251)
        ("a", 1, 2, 9, ErrorCode.STALE_MEMBER_EPOCH),  # 2 is gone
        ("b", 1, 2, 9, ErrorCode.STALE_MEMBER_EPOCH),  # b has had 2 since epoch 2
        ("a", 0, 0, 9, ErrorCode.STALE_MEMBER_EPOCH),  # no member had 0 then
        ("a", 3, 0, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("z", 2, 0, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 2, 0, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("", -1, 0, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with case(member_id, epoch, partition, version):
            assert commit(driver, member_id, epoch, partition, version) == code
    driver.beat("b", -1)
    driver.settle()
    for partition, code in ((0, ErrorCode.NONE), (2, ErrorCode.STALE_MEMBER_EPOCH)):
        with case(partition):
            assert commit(driver, "a", 2, partition) == code
            assert commit(driver, "a", 3, partition) == ErrorCode.NONE
    driver.beat("a", -1)
    assert commit(driver, "", -1, 0) == ErrorCode.NONE


def test_a_fetch_of_offsets_with_an_old_epoch_is_refused() -> None:
    driver = settled("a")
    driver.group.check_fetch(None, -1)
    driver.group.check_fetch("a", 1)
    for member_id, epoch, code in (("a", 0, ErrorCode.STALE_MEMBER_EPOCH), ("z", 1, ErrorCode.UNKNOWN_MEMBER_ID)):
        with case(member_id, epoch), pytest.raises(GroupRefused) as refused:
            driver.group.check_fetch(member_id, epoch)
        assert refused.value.code == code
