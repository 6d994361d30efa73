"""Claims about what `cluster status` prints, given facts and no cluster."""

import re
from dataclasses import replace

import pytest
from cases import case

from minibroker.cli import inspecting
from minibroker.cli.inspecting import document, text
from minibroker.cli.prospects import prospect
from minibroker.cli.status import Facts, Finding, Node, Partition, Quorum, Role, advice, counts, findings
from minibroker.cli.tables import table_text
from minibroker.clients.admin import ClusterDescription, LogEnd, QuorumDescription, QuorumReplica

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
        min_insync_replicas=min_isr,
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


def test_two_processes_with_one_node_id_are_told_from_one_node_that_lost_its_disk() -> None:
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
    assert finding.what.startswith("two processes run as node 2, each with a disk of its own")
    assert finding.to_do.endswith("give it another node.id")


def test_a_fenced_node_stays_in_sync_where_it_is_the_last_in_sync_replica() -> None:
    facts = replace(
        WELL, nodes=[node(1), node(2, is_fenced=True), node(3)], partitions=[partition(leader=-1, isr=(2,))]
    )
    (said,) = [it for it in whats(facts) if it.startswith("node 2 at host2:9092 is fenced")]
    assert said.endswith("It leads no partition and is in sync only where it is the last in-sync replica")


def test_a_healthy_cluster_has_no_findings() -> None:
    assert findings(WELL) == []
    assert text(WELL).endswith("nothing is wrong\x1b[0m")
    assert set(counts(WELL).values()) == {0, 2}


def test_a_fenced_node_is_named_with_its_consequences() -> None:
    lacking = [partition(0, isr=(1, 2)), partition(1, isr=(1, 2))]
    facts = replace(WELL, nodes=[node(1), node(2), node(3, is_fenced=True)], partitions=lacking)
    fenced, voters, replicas = findings(facts)
    assert fenced.what.startswith("node 3 at host3:9092 is fenced: ")
    assert "start it again" in fenced.to_do
    assert voters.what.startswith(
        "2 of 3 voters are running, and a majority needs 2: if one more stops, there is no controller"
    )
    assert replicas.what == "orders-0, orders-1 have no replica in sync on node 3, because that node is not running"
    assert counts(facts)["under_replicated"] == 2


def test_a_fenced_node_that_is_not_a_voter_endangers_no_majority() -> None:
    facts = replace(WELL, nodes=[*WELL.nodes, node(4, is_fenced=True)])
    assert only(facts).what.startswith("node 4 at host4:9092 is fenced")


def test_a_fenced_node_can_be_removed_once_its_replicas_are_moved() -> None:
    remove = "`minibroker cluster remove-broker 4` unregisters it"
    facts = replace(WELL, nodes=[*WELL.nodes, node(4, is_fenced=True)])
    assert only(facts).to_do.endswith(f"It has no replicas: if it will not come back, {remove}")
    has_one = replace(facts, partitions=[replace(partition(), replicas=(1, 2, 4), isr=(1, 2))])
    fenced = findings(has_one)[0]
    assert fenced.to_do.endswith(
        f"`minibroker topics reassign --from 4` moves its replicas to other nodes, and then {remove}"
    )


def test_a_poor_number_of_voters_is_not_wrong_but_gives_advice() -> None:
    expected = {
        1: "1 voter: if it stops, there is no controller. 3 voters tolerate the failure of one: ",
        2: "2 voters: if one stops, there is no controller. 3 voters tolerate the failure of one: ",
        4: "4 voters tolerate only as many failures as 3 voters, because 3 of them must be running. ",
    }
    for count, words in expected.items():
        roles = {1: Role.CONTROLLER, **{it: Role.VOTER if it <= count else Role.OBSERVER for it in (2, 3, 4)}}
        facts = replace(WELL, nodes=[replace(node(it), role=role) for it, role in roles.items()])
        assert findings(facts) == [], count
        said = "".join(advice(facts))
        assert said.startswith(words), count
        assert text(facts).endswith(f"nothing is wrong\x1b[0m\nadvice: {said}."), count
        assert document(facts)["advice"] == [said], count


def test_three_voters_and_a_single_node_need_no_advice() -> None:
    assert advice(WELL) == []
    assert advice(replace(WELL, nodes=[node(1)])) == []


def test_one_missing_voter_of_five_endangers_no_majority() -> None:
    voters = [replace(node(it), role=Role.VOTER) for it in (2, 3, 4)]
    facts = replace(WELL, nodes=[node(1), *voters, replace(node(5, is_fenced=True), role=Role.VOTER)])
    assert only(facts).what.startswith("node 5")


def test_a_silent_voter_without_partitions_is_noticed() -> None:
    """It has no session with the controller, so the time of its last fetch is the only sign."""
    facts = replace(WELL, nodes=[node(1), node(2), node(3, silent_ms=12_000, is_broker=False)])
    silent, voters = findings(facts)
    assert silent.what == "node 3 at host3:9092 has not fetched the metadata for 12 s"
    assert voters.what.startswith("2 of 3 voters are running")


def test_a_voter_that_the_controller_has_never_heard_is_silent() -> None:
    """It went before the present controller was elected, so the controller has no time to name."""
    replicas = [QuorumReplica(1, 50, 10_000), QuorumReplica(2, 50, 9900), QuorumReplica(3, -1, -1)]
    quorum = QuorumDescription(1, 7, 50, replicas, [], [])
    nodes = inspecting._nodes(ClusterDescription("x", 1, [], []), quorum)
    assert [(it.state, it.log_end_offset) for it in nodes] == [("live", 50), ("live", 50), ("silent", None)]
    never, voters = findings(replace(WELL, nodes=nodes))
    assert never.what == "node 3 has not fetched the metadata since the present controller was elected"
    assert voters.what.startswith("2 of 3 voters are running")


def test_a_voter_that_came_back_with_another_disk_does_not_count_as_running() -> None:
    facts = replace(WELL, nodes=[node(1), node(2), replace(node(3), has_another_disk=True)])
    disk, voters = findings(facts)
    assert disk.what.startswith("node 3 at host3:9092 restarted with another disk than the one it had as a voter")
    assert disk.to_do.endswith("`minibroker cluster remove-voter 3`, then `minibroker cluster add-voter 3`")
    assert voters.what.startswith("2 of 3 voters are running")
    assert voters.to_do == "make node 3 a voter again as described above before you restart any other node"
    # With its new disk the node only follows.
    assert text(facts).splitlines()[5].split()[3] == "observer"


def test_a_slow_follower_is_told_from_one_that_is_not_running() -> None:
    finding = only(replace(WELL, partitions=[partition(isr=(1, 2))]))
    assert finding.what.startswith("orders-0 has no replica in sync on node 3, though that node is running")
    assert "the log of node 3" in finding.to_do


def test_a_replica_that_is_being_added_is_not_missing() -> None:
    moving = replace(partition(isr=(1, 2)), adding=(3,))
    assert findings(replace(WELL, partitions=[moving], moving=["orders-0"])) == []


def test_a_partition_with_too_few_in_sync_replicas_refuses_acks_all() -> None:
    facts = replace(WELL, partitions=[partition(isr=(1,))])
    refused = findings(facts)[0]
    assert "(orders-0: 1 of 2): records with acks=all are refused there" in refused.what
    assert counts(facts)["under_min_isr"] == 1


def test_a_partition_with_one_replica_takes_acks_all_whatever_min_insync_replicas_says() -> None:
    """As in Kafka, no more replicas must be in sync than a partition has (`Partition.effectiveMinIsr`)."""
    alone = replace(partition(min_isr=2), replicas=(1,), isr=(1,))
    facts = replace(WELL, partitions=[alone])
    assert findings(facts) == []
    assert counts(facts)["under_min_isr"] == 0
    two = replace(WELL, partitions=[replace(partition(min_isr=3), replicas=(1, 2), isr=(1,))])
    assert "(orders-0: 1 of 2): records with acks=all are refused there" in findings(two)[0].what
    assert counts(two)["under_min_isr"] == 1


def test_a_partition_without_a_leader_comes_first_with_both_ways_to_get_one() -> None:
    nodes = [node(1), node(2, is_fenced=True), node(3)]
    facts = replace(WELL, nodes=nodes, partitions=[partition(4, leader=-1, isr=(2,))])
    offline = findings(facts)[0]
    assert offline.what == "orders-4 has no leader: only node 2 has all the records, and is not running"
    assert offline.to_do.startswith("start node 2. If it is lost for good, ")
    assert "`minibroker topics elect-leaders orders --partition 4 --unclean`" in offline.to_do


def test_a_partition_without_any_in_sync_replica_needs_an_unclean_election() -> None:
    offline = findings(replace(WELL, partitions=[partition(leader=-1, isr=())]))[0]
    assert offline.what == "orders-0 has no leader: no replica is known to have all the records"
    assert offline.to_do.startswith("start every node that has a replica. Then `minibroker topics elect-leaders orders")
    assert offline.to_do.endswith("--unclean` elects the longest log, and the records that it lacks are lost")
    told = replace(partition(leader=-1, isr=()), prospect=prospect((1, 2, 3), {2: LogEnd(4, 12_199)}))
    assert findings(replace(WELL, partitions=[told]))[0].to_do.endswith(
        "the records that it lacks are lost (orders-0: node 2 would lead, whose log ends at offset 12,199; records "
        "that only nodes 1, 3 had would be lost, and their number cannot be known now)"
    )


def test_eligible_replicas_have_all_the_records_and_are_to_be_started() -> None:
    nodes = [node(1), node(2, is_fenced=True), node(3, is_fenced=True)]
    waits = replace(partition(leader=-1, isr=()), eligible=(2, 3))
    offline = findings(replace(WELL, nodes=nodes, partitions=[waits]))[0]
    assert offline.what == "orders-0 has no leader: only nodes 2, 3 have all the records, and are not running"
    assert offline.to_do.startswith("start one of nodes 2, 3. ")


def test_an_unclean_election_is_foretold_by_the_rules_of_the_controller() -> None:
    end = LogEnd
    for ends, expected in (
        ({1: end(4, 10), 2: end(4, 12), 3: end(4, 11)}, "node 2 would lead, whose log ends at offset 12; no other"),
        ({1: end(4, 10), 2: end(3, 15), 3: end(4, 11)}, "node 3 would lead, whose log ends at offset 11; 4 later rec"),
        (
            {1: end(4, 10), 3: end(4, 10)},
            "node 3 would lead, whose log ends at offset 10; records that only node 2 had would",
        ),
    ):
        with case(ends):
            assert str(prospect((1, 2, 3), ends, last_leader=3)).startswith(expected)
    assert prospect((1, 2, 3), {}) is None


def test_leaders_that_are_not_the_preferred_ones_are_reported() -> None:
    finding = only(replace(WELL, partitions=[partition(leader=2)]))
    assert finding.what.startswith("orders-0 is not led by its preferred leader")
    assert finding.to_do.endswith("Or do it now: `minibroker topics elect-leaders`")
    # A preferred leader that is not in sync cannot be elected.
    behind = replace(WELL, partitions=[partition(leader=2, isr=(2, 3))])
    assert not any("preferred" in it for it in whats(behind))
    assert counts(behind)["not_on_preferred_leader"] == 1


def test_a_node_without_partitions_that_lost_its_disk_is_added_by_its_address() -> None:
    lost = replace(node(3, is_broker=False), has_another_disk=True)
    disk = findings(replace(WELL, nodes=[node(1), node(2), lost], partitions=[]))[0]
    assert disk.to_do.endswith("then `minibroker cluster add-voter 3 --address host3:9092`")
    assert "partitions" not in disk.what


def test_without_a_controller_the_nodes_that_do_not_answer_are_named() -> None:
    nodes = [replace(node(1), is_unreached=True), node(2), replace(node(3), is_unreached=True)]
    facts = replace(WELL, quorum=None, nodes=nodes)
    assert "start nodes 1, 3, which do not answer, and the nodes in controller.quorum.voters" in only(facts).to_do
    assert "as they were last known" in only(facts).what
    assert [line.split()[4:6] for line in text(facts).splitlines()[3:6:2]] == [["no", "answer"]] * 2


def test_no_controller_is_the_first_finding() -> None:
    facts = replace(WELL, quorum=None, partitions=[partition(leader=-1, isr=(2,))])
    assert whats(facts)[0].startswith("there is no controller: no majority of the voters is running")
    assert "quorum: no controller" in text(facts)
    assert document(facts)["quorum"] is None


def test_of_many_partitions_three_are_named() -> None:
    many = [partition(number, isr=(1, 2)) for number in range(10)]
    assert whats(replace(WELL, partitions=many)) == [
        "orders-0, orders-1, orders-2 and 7 more have no replica in sync on node 3, though that node is running: the "
        "replica is catching up, or is slower than replica.lag.time.max.ms allows"
    ]


def test_every_finding_says_what_to_do_and_leaves_the_full_stop_to_the_printer() -> None:
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


def test_the_table_shows_role_state_and_lag_of_each_node() -> None:
    facts = replace(WELL, nodes=[node(1), node(2), node(3, is_fenced=True)])
    assert [line.split() for line in text(facts).splitlines()[3:6]] == [
        ["1", "host1:9092", "-", "controller", "live", "2", "2", "0"],
        ["2", "host2:9092", "-", "voter", "live", "0", "2", "0"],
        ["3", "host3:9092", "-", "voter", "fenced", "0", "2", "10"],
    ]


def test_the_lag_of_a_silent_node_is_not_known_and_its_column_stays_aligned() -> None:
    facts = replace(WELL, nodes=[node(1), node(2), node(3, silent_ms=1500)])
    lines = text(facts).splitlines()[2:6]
    assert [line[-5:] for line in lines] == ["A LAG", "    0", "    0", "    -"]


def test_a_refresh_clears_the_screen_and_not_the_scrollback(capsys: pytest.CaptureFixture[str]) -> None:
    """ESC [3J would clear the scrollback, too."""
    assert inspecting._CLEAR == "\x1b[H\x1b[J"
    inspecting._clear(is_screen=True)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\n", capsys.readouterr().out)


def test_a_column_of_unknown_cells_is_aligned_as_text() -> None:
    assert table_text(["NAME", "RACK"], [["a", "-"], ["b", "-"]]) == "NAME  RACK\na     -\nb     -"
