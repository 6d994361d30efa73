"""Claims about what `cluster status` says: sentences made from facts, without a cluster."""

import re
from dataclasses import replace

import pytest

from minibroker.cli import inspecting
from minibroker.cli.inspecting import document, text
from minibroker.cli.status import Facts, Finding, Node, Partition, Quorum, Role, advice, counts, findings
from minibroker.cli.tables import table_text
from minibroker.clients.admin import ClusterDescription, QuorumDescription, QuorumReplica

ROLES = {1: Role.CONTROLLER, 2: Role.VOTER, 3: Role.VOTER}


def node(number: int, *, is_fenced: bool = False, silent_ms: int = 0, is_broker: bool = True) -> Node:
    return Node(
        node_id=number,
        address=f"host{number}:9092",
        role=ROLES.get(number, Role.OBSERVER),
        is_broker=is_broker,
        is_fenced=is_fenced,
        log_end_offset=40 if is_fenced else 50,
        silent_ms=silent_ms,
    )


def partition(number: int = 0, *, leader: int = 1, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 2) -> Partition:
    return Partition(
        name=f"orders-{number}",
        topic="orders",
        number=number,
        leader_id=leader,
        replicas=(1, 2, 3),
        isr=isr,
        min_isr=min_isr,
    )


WELL = Facts(
    cluster_id="x" * 22,
    nodes=[node(1), node(2), node(3)],
    partitions=[partition(0), partition(1)],
    quorum=Quorum(leader_id=1, epoch=7, high_watermark=50),
)


def whats(facts: Facts) -> list[str]:
    return [it.what for it in findings(facts)]


def only(facts: Facts) -> Finding:
    (finding,) = findings(facts)
    return finding


def test_two_machines_with_one_number_are_told_from_one_whose_disk_was_lost() -> None:
    def replica(number: int, disk: int, silent_ms: int = 0) -> QuorumReplica:
        return QuorumReplica(number, 50, 10_000 - silent_ms, bytes([disk] * 16))

    def nodes(*observers: QuorumReplica) -> list[Node]:
        voters = [replica(1, 1), replica(2, 2, 300), replica(3, 3, 5000)]
        quorum = QuorumDescription(1, 7, 50, voters, observers, [])
        return inspecting._nodes(ClusterDescription("x", 1, [], []), quorum)

    found = nodes(replica(1, 9, 200), replica(2, 9, 200), replica(3, 9, 200))
    assert [(it.is_doubled, it.has_another_disk) for it in found] == [(True, False), (True, False), (False, True)]
    assert not any(it.is_doubled for it in nodes(replica(4, 4)))
    twice = [node(1), replace(node(2), is_doubled=True), node(3)]
    finding = only(replace(WELL, nodes=twice))
    assert finding.what.startswith("two machines run as node 2, each with a disk of its own")
    assert finding.to_do.endswith("give it another node.id")


def test_a_fenced_node_that_is_the_last_in_sync_is_not_said_to_be_in_sync_nowhere() -> None:
    facts = replace(
        WELL, nodes=[node(1), node(2, is_fenced=True), node(3)], partitions=[partition(leader=-1, isr=(2,))]
    )
    (said,) = [it for it in whats(facts) if it.startswith("node 2 at host2:9092 is fenced")]
    assert said.endswith("It leads nothing and is in sync only where nobody else is")


def test_where_nothing_is_wrong_nothing_is_said() -> None:
    assert findings(WELL) == []
    assert text(WELL).endswith("nothing is wrong\x1b[0m")
    assert set(counts(WELL).values()) == {0, 2}


def test_a_node_that_is_fenced_is_named_with_what_it_costs() -> None:
    lacking = [partition(0, isr=(1, 2)), partition(1, isr=(1, 2))]
    facts = replace(WELL, nodes=[node(1), node(2), node(3, is_fenced=True)], partitions=lacking)
    fenced, voters, replicas = findings(facts)
    assert fenced.what.startswith("node 3 at host3:9092 is fenced: ")
    assert "start it again" in fenced.to_do
    assert voters.what.startswith("2 of 3 voters are there, and 2 must be: if one more goes, nobody decides")
    assert replicas.what == "orders-0, orders-1 have no replica in sync on node 3, because it is not there"
    assert counts(facts)["under_replicated"] == 2


def test_a_fenced_node_that_does_not_vote_endangers_no_majority() -> None:
    facts = replace(WELL, nodes=[*WELL.nodes, node(4, is_fenced=True)])
    assert only(facts).what.startswith("node 4 at host4:9092 is fenced")


def test_a_fenced_node_without_replicas_can_be_forgotten_and_one_with_replicas_can_be_drained() -> None:
    forget = "`minibroker cluster remove-broker 4` lets the cluster forget it"
    facts = replace(WELL, nodes=[*WELL.nodes, node(4, is_fenced=True)])
    assert only(facts).to_do.endswith(f"It has no replicas: if it is not to come back, {forget}")
    has_one = replace(facts, partitions=[replace(partition(), replicas=(1, 2, 4), isr=(1, 2))])
    fenced = findings(has_one)[0]
    assert fenced.to_do.endswith(f"`minibroker topics reassign --from 4` puts its replicas elsewhere, and {forget}")


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "1 voter: if it goes, nobody decides any more. 3 voters survive the death of one: "),
        (2, "2 voters: if one goes, nobody decides any more. 3 voters survive the death of one: "),
        (4, "4 voters, of which 3 must be there, survive no more deaths than 3 do. "),
    ],
)
def test_a_number_of_voters_that_is_no_good_one_is_not_wrong_but_said(count: int, words: str) -> None:
    roles = {1: Role.CONTROLLER}
    nodes = [replace(node(it), role=roles.get(it, Role.VOTER if it <= count else Role.OBSERVER)) for it in range(1, 5)]
    facts = replace(WELL, nodes=nodes)
    assert findings(facts) == []
    (said,) = advice(facts)
    assert said.startswith(words)
    assert text(facts).endswith(f"nothing is wrong\x1b[0m\nadvice: {said}.")
    assert document(facts)["advice"] == [said]


def test_three_voters_and_a_node_that_is_alone_need_no_advice() -> None:
    assert advice(WELL) == []
    assert advice(replace(WELL, nodes=[node(1)])) == []


def test_of_five_voters_one_may_go_without_a_word_about_the_rest() -> None:
    voters = [replace(node(it), role=Role.VOTER) for it in (2, 3, 4)]
    facts = replace(WELL, nodes=[node(1), *voters, replace(node(5, is_fenced=True), role=Role.VOTER)])
    assert only(facts).what.startswith("node 5")


def test_a_voter_without_partitions_that_falls_silent_is_noticed() -> None:
    """It has no session with the controller: only that it does not fetch tells."""
    facts = replace(WELL, nodes=[node(1), node(2), node(3, silent_ms=12_000, is_broker=False)])
    silent, voters = findings(facts)
    assert silent.what == "node 3 at host3:9092 has not fetched the metadata for 12 s"
    assert voters.what.startswith("2 of 3 voters are there")


def test_a_voter_that_came_back_with_another_disk_does_not_count() -> None:
    facts = replace(WELL, nodes=[node(1), node(2), replace(node(3), has_another_disk=True)])
    disk, voters = findings(facts)
    assert disk.what.startswith("node 3 at host3:9092 has come back with another disk than it had as a voter")
    assert disk.to_do.endswith("`minibroker cluster remove-voter 3`, then `minibroker cluster add-voter 3`")
    assert voters.what.startswith("2 of 3 voters are there")
    # One thing to do, not two; and with the disk that it has it only follows.
    assert voters.to_do == "let node 3 vote again as is said above, first, before anything else is restarted"
    assert text(facts).splitlines()[5].split()[3] == "observer"


def test_a_follower_that_is_there_but_behind_is_something_else_than_one_that_is_gone() -> None:
    finding = only(replace(WELL, partitions=[partition(isr=(1, 2))]))
    assert finding.what.startswith("orders-0 has no replica in sync on node 3, though it is there")
    assert "the log of node 3" in finding.to_do


def test_a_replica_that_is_on_its_way_in_is_not_missing() -> None:
    moving = replace(partition(isr=(1, 2)), adding=(3,))
    assert findings(replace(WELL, partitions=[moving], moving=["orders-0"])) == []


def test_a_partition_with_too_few_in_sync_refuses_writers() -> None:
    facts = replace(WELL, partitions=[partition(isr=(1,))])
    refused = findings(facts)[0]
    assert "(orders-0: 1 of 2): producers with acks=all are refused there" in refused.what
    assert counts(facts)["under_min_isr"] == 1


def test_a_partition_without_a_leader_comes_first_with_the_way_back_and_the_way_out() -> None:
    nodes = [node(1), node(2, is_fenced=True), node(3)]
    facts = replace(WELL, nodes=nodes, partitions=[partition(4, leader=-1, isr=(2,))])
    offline = findings(facts)[0]
    assert offline.what == "orders-4 has no leader: only node 2 has all the records, and is not there"
    assert offline.to_do.startswith("start node 2. If it is lost for good, ")
    assert "`minibroker topics elect-leaders orders --partition 4 --unclean`" in offline.to_do


def test_a_partition_whose_last_replica_may_have_lost_something_needs_a_decision() -> None:
    offline = findings(replace(WELL, partitions=[partition(leader=-1, isr=())]))[0]
    assert offline.what == "orders-0 has no leader: no replica is known to have all the records"
    assert "--unclean" in offline.to_do


def test_leaders_that_are_not_the_preferred_ones_can_be_put_back() -> None:
    finding = only(replace(WELL, partitions=[partition(leader=2)]))
    assert finding.what.startswith("orders-0 is not led by its preferred leader")
    assert finding.to_do.endswith("Or do it now: `minibroker topics elect-leaders`")
    # Nothing can be done where it is not in sync.
    behind = replace(WELL, partitions=[partition(leader=2, isr=(2, 3))])
    assert not any("preferred" in it for it in whats(behind))
    assert counts(behind)["not_on_preferred_leader"] == 1


def test_a_controller_with_another_disk_is_added_by_its_address_and_has_no_partitions() -> None:
    lost = replace(node(3, is_broker=False), has_another_disk=True)
    disk = findings(replace(WELL, nodes=[node(1), node(2), lost], partitions=[]))[0]
    assert disk.to_do.endswith("then `minibroker cluster add-voter 3 --address host3:9092`")
    assert "partitions" not in disk.what


def test_where_nobody_decides_those_are_named_who_do_not_answer() -> None:
    nodes = [replace(node(1), is_unreached=True), node(2), replace(node(3), is_unreached=True)]
    facts = replace(WELL, quorum=None, nodes=nodes)
    assert "start nodes 1, 3, which do not answer, and the nodes in controller.quorum.voters" in only(facts).to_do
    assert "as it was known last" in only(facts).what
    assert [line.split()[4:6] for line in text(facts).splitlines()[3:6:2]] == [["no", "answer"]] * 2


def test_no_quorum_is_the_worst_of_all() -> None:
    facts = replace(WELL, quorum=None, partitions=[partition(leader=-1, isr=(2,))])
    assert whats(facts)[0].startswith("nobody decides: no majority of the voters is there")
    assert "quorum: nobody decides" in text(facts)
    assert document(facts)["quorum"] is None


def test_of_many_partitions_three_are_named() -> None:
    many = [partition(number, isr=(1, 2)) for number in range(10)]
    assert whats(replace(WELL, partitions=many)) == [
        "orders-0, orders-1, orders-2 and 7 more have no replica in sync on node 3, though it is there: it is catching "
        "up, or slower than replica.lag.time.max.ms allows"
    ]


def test_every_finding_says_what_to_do_in_a_sentence_without_its_full_stop() -> None:
    broken = replace(
        WELL,
        quorum=None,
        nodes=[node(1), node(2, is_fenced=True), node(3, silent_ms=9000)],
        partitions=[partition(0, leader=-1, isr=(2,)), partition(1, leader=3, isr=(3,)), partition(2, isr=(1, 2))],
    )
    assert len(findings(broken)) >= 5
    for it in findings(broken):
        assert it.what
        assert it.to_do
        assert not (it.what + it.to_do).endswith(".")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_table_shows_role_state_and_lag_of_each_node(number: int) -> None:
    facts = replace(WELL, nodes=[node(1), node(2), node(3, is_fenced=True)])
    line = text(facts).splitlines()[2 + number].split()
    assert line == [
        str(number),
        f"host{number}:9092",
        "-",
        ROLES[number].value,
        "fenced" if number == 3 else "live",
        "2" if number == 1 else "0",
        "2",
        "10" if number == 3 else "0",
    ]


def test_what_a_silent_node_lacks_is_not_known_and_the_column_stays_where_it_is() -> None:
    facts = replace(WELL, nodes=[node(1), node(2), node(3, silent_ms=1500)])
    lines = text(facts).splitlines()[2:6]
    assert [line[-5:] for line in lines] == ["A LAG", "    0", "    0", "    -"]


def test_to_show_it_anew_takes_nothing_away_but_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """ESC [3J would take what was said before, too."""
    assert inspecting._CLEAR == "\x1b[H\x1b[J"
    inspecting._clear(is_screen=True)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\n", capsys.readouterr().out)


def test_a_column_without_any_number_is_one_of_words() -> None:
    assert table_text(["NAME", "RACK"], [["a", "-"], ["b", "-"]]) == "NAME  RACK\na     -\nb     -"
