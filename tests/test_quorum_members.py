"""The members of a cluster: a broker that joins, a voter that lost its disk, and administration through any node."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from brokers import eventually, unique
from clients_raw import PRODUCE, Batch, Connection, array, data32, header, i16, i32, record, string
from clients_stock import READ_S_MAX, Message, admin, confluent_read, confluent_write
from clusters import QuorumCluster, QuorumNode, Sender, sender
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition
from proxy import Exchange, Verdict

from minibroker.clients import admin as ours_admin
from minibroker.clients.blocking import Client
from minibroker.partitions.registry import Call, Session
from minibroker.quorum.envelope import wrap
from minibroker.raft.tables.add_raft_voter import AddRaftVoterRequest, VoterListener
from minibroker.raft.tables.remove_raft_voter import RemoveRaftVoterRequest
from minibroker.replicas.peers import client_id_of
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker.wire.uuids import NO_UUID

pytest_plugins = ["clusters_fixtures"]

EVERYBODY = (1, 2, 3)


@contextmanager
def python_admin(address: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=address)) as client:
        yield client


def set_config(quorum: QuorumCluster, topic: str, name: str, value: str, *, through: int) -> None:
    client = admin(quorum.address_of(through))
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(READ_S_MAX)


def config_of(quorum: QuorumCluster, topic: str, name: str, *, through: int) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = admin(quorum.address_of(through))
    found = client.describe_configs([resource])[resource].result(READ_S_MAX)
    return str(found[name].value)


def test_any_node_takes_administrative_requests_of_stock_clients(quorum: QuorumCluster) -> None:
    decides = quorum.controller()
    for through in EVERYBODY:
        topic = quorum.create(unique("any"), [[1, 2, 3]], through=through)
        other = through % 3 + 1
        set_config(quorum, topic, "retention.ms", "12345", through=other)
        eventually(lambda t=topic, n=through: config_of(quorum, t, "retention.ms", through=n) == "12345", "it is set")  # type: ignore[misc]
        client = admin(quorum.address_of(other))
        client.create_partitions([NewPartitions(topic, 2)])[topic].result(READ_S_MAX)
        for number in EVERYBODY:
            eventually(lambda t=topic, n=number: quorum.state(t, 1, at=n), "all have two partitions")  # type: ignore[misc]
        client = admin(quorum.address_of(through))
        client.delete_topics([topic])[topic].result(READ_S_MAX)
        cluster = client.describe_cluster().result(READ_S_MAX)
        assert sorted(node.id for node in cluster.nodes) == list(EVERYBODY)
        # The node that is asked forwards requests to the controller, which may be dead.
        assert cluster.controller.id == through
        with python_admin(quorum.address_of(through)) as theirs:
            found = theirs.describe_metadata_quorum()["topics"][0]["partitions"][0]
        voting = sorted(it["replica_id"] for it in found["current_voters"])
        assert (found["leader_id"], voting) == (decides, list(EVERYBODY))


@contextmanager
def asked_between_nodes(quorum: QuorumCluster, of: int) -> Iterator[list[int]]:
    """The API keys that nodes ask of one of them meanwhile, in a list that grows."""
    keys: list[int] = []
    judge = quorum.proxies[of].on_request

    def note(exchange: Exchange) -> Verdict:
        if sender(exchange.request):
            keys.append(exchange.api_key)
        return judge(exchange)

    quorum.proxies[of].on_request = note
    yield keys
    quorum.proxies[of].on_request = judge


def test_a_forwarded_request_goes_in_an_envelope_and_no_client_may_send_one(quorum: QuorumCluster) -> None:
    decides = quorum.controller()
    through = decides % 3 + 1
    with asked_between_nodes(quorum, decides) as asked:
        topic = quorum.create(unique("envelope"), [[1, 2, 3]], through=through)
    assert ApiKey.ENVELOPE in asked
    assert ApiKey.CREATE_TOPICS not in asked
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic, topic_id=NO_UUID)], timeout_ms=5000)
    header = RequestHeader(ApiKey.DELETE_TOPICS, 6, 1, client_id_of(1))
    envelope = wrap(Call(delete, header.api_version, header, 0, Session("127.0.0.1:1")))
    for number in EVERYBODY:
        with Client(quorum[number].address, client_id=client_id_of(1)) as client:
            assert client.send(envelope).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert quorum.state(topic, at=decides) is not None


def test_a_slow_forwarded_request_does_not_delay_the_heartbeats_of_its_node(
    quorum: QuorumCluster,
) -> None:
    decides = quorum.controller()
    through = decides % 3 + 1
    words = len(quorum[decides].log())
    # The voter to add never catches up, so the request waits longer than a session.
    listener = VoterListener(name="CONTROLLER", host="127.0.0.1", port=1)
    add = AddRaftVoterRequest(timeout_ms=3000, voter_id=99, voter_directory_id=bytes(15) + b"9", listeners=[listener])
    assert ask(quorum, add, at=through)[0] == ErrorCode.REQUEST_TIMED_OUT
    assert "silent" not in quorum[decides].log()[words:]


def test_stock_clients_move_partitions_and_elect_leaders(quorum: QuorumCluster) -> None:
    topic = quorum.create(unique("moves"), [[1, 2]])
    away, where = PythonTopicPartition(topic, 0), TopicPartition(topic, 0)
    with python_admin(quorum.address_of(3)) as theirs:
        theirs.alter_partition_reassignments({away: [3, 1]})
        eventually(lambda: not theirs.list_partition_reassignments(), "the move is over")
    quorum.await_isr(topic, 1, 3, at=EVERYBODY)
    client = admin(quorum.bootstrap)
    result = client.elect_leaders(ElectionType.PREFERRED, [where]).result(READ_S_MAX)
    assert result[where] is None or quorum.leader(topic) == 3
    eventually(lambda: (state := quorum.state(topic, at=1)) and state.leader == 3, "node 3 leads")


def test_a_node_that_is_not_the_leader_says_so_and_any_node_names_the_leader(quorum: QuorumCluster) -> None:
    topic = quorum.create(unique("wrong"), [[2, 3, 1]])
    partitions = array([i32(0) + data32(Batch(record(b"value")).encode())])
    frame = header(PRODUCE, 7) + string(None) + i16(-1) + i32(1000) + array([string(topic) + partitions])
    for number in (1, 3):
        with Connection(quorum[number]) as connection:
            assert connection.produce(frame).code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    offsets = [confluent_write(quorum.address_of(it), topic, [Message(b"value")])[0] for it in EVERYBODY]
    assert offsets == [0, 1, 2]


def check_that_replicas_are_spread_over_racks(quorum: QuorumCluster, far: int) -> None:
    """One broker is in another rack than the rest: every node knows it, and each new partition has a replica there."""
    client = admin(quorum.address_of(2))
    racks = {**dict.fromkeys(EVERYBODY), far: "far"}

    def has_all() -> bool:
        return {it.id: it.rack for it in client.describe_cluster().result(READ_S_MAX).nodes} == racks

    eventually(has_all, f"the racks are {racks}")
    topic = unique("racks")
    client.create_topics([NewTopic(topic, num_partitions=4, replication_factor=2)])[topic].result(READ_S_MAX)
    with Client(quorum[far].address) as ours:
        eventually(lambda: len(ours.metadata([topic]).topics[0].partitions) == 4, f"{topic} is known")
        metadata = ours.metadata([topic])
    assert {node.node_id: node.rack for node in metadata.brokers} == racks
    partitions = metadata.topics[0].partitions
    assert all(far in it.replica_nodes for it in partitions)
    assert sorted(it.replica_nodes[0] for it in partitions) == [*EVERYBODY, far]
    client.delete_topics([topic])[topic].result(READ_S_MAX)


def test_a_fourth_broker_joins_and_takes_partitions(quorum: QuorumCluster) -> None:
    topic = quorum.create(unique("joins"), [[1, 2, 3]], min_insync_replicas=2)
    try:
        with Sender(quorum, topic) as sender:
            sender.await_acks()
            # A consumer's first question for its coordinator makes the topic of committed offsets. Made after node 4
            # has joined, it would have a replica of each partition in the other rack, and node 4 would have its share.
            confluent_read(quorum.bootstrap, topic, 1)
            eventually(lambda: quorum.state("__consumer_offsets", at=1), "the internal topic is there")
            node = quorum.add(4)
            node.settings += ("broker.rack=far",)
            node.restart()
            check_that_replicas_are_spread_over_racks(quorum, node.number)
            state = quorum.quorum(at=4)
            assert state is not None
            assert [it.replica_id for it in state.observers] == [4]
            with python_admin(quorum.bootstrap) as theirs:
                theirs.alter_partition_reassignments({PythonTopicPartition(topic, 0): [4, 2, 3]})
            quorum.await_isr(topic, 2, 3, 4)
            assert quorum.leader(topic, among=[2, 3, 4])
            sender.await_acks()
            # Node 1 has no replica of it any more; the new node may lead.
            eventually(lambda: not (quorum[1].data / f"{topic}-0").exists(), "node 1 has let it go")
            client = admin(quorum.bootstrap)
            client.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(READ_S_MAX)
            eventually(lambda: (state := quorum.state(topic, at=2)) and state.leader == 4, "node 4 leads")
            sender.await_acks()
            sender.finish()
        sender.check()
        check_that_a_broker_gets_its_share_and_is_removed(quorum, 4)
    finally:
        quorum.remove(4)


def replicas_on(quorum: QuorumCluster, number: int, topic: str | None, *, at: int) -> list[str]:
    """The replicas of a node, as some node reports them."""
    with Client(quorum[at].address) as ours:
        topics = ours_admin.describe_topics(ours, None if topic is None else [topic]).values()
    return [f"{it.name}-{one.partition}" for it in topics for one in it.partitions if number in one.replicas]


def await_replicas_on(quorum: QuorumCluster, number: int, expected: list[str], topic: str | None = None) -> None:
    """Wait until no partition is moved any more, and every node reports these replicas of a node.

    The controller ends a move. The other nodes read of it later, and any of them may answer the next command.
    """
    with Client(quorum[1].address) as ours:
        eventually(lambda: not ours_admin.list_reassignments(ours), "all moves are over", seconds=60)
    for at in quorum.living():
        eventually(
            lambda n=at: replicas_on(quorum, number, topic, at=n) == expected,  # type: ignore[misc]
            f"node {at} reports {expected} on node {number}",
        )


def check_that_a_broker_gets_its_share_and_is_removed(quorum: QuorumCluster, last: int) -> None:
    """As an operator does it: spread partitions over a new machine; then drain it, stop it and unregister it."""
    topic = quorum.create(unique("spread"), [[1, 2], [2, 3], [3, 1], [1, 2]])
    bootstrap = quorum.address_of(2)
    reassign = ("topics", "reassign")
    plan = json.loads(run(bootstrap, *reassign, topic, "--spread", "--dry-run", "--format", "json").stdout)
    assert replicas_on(quorum, last, topic, at=1) == []
    said = run(bootstrap, *reassign, topic, "--spread")
    assert len(said.stdout.splitlines()) == 1 + len(plan)
    assert "being moved; `minibroker topics reassign` lists the moves that are not finished" in said.stderr
    on_the_new = [f"{it['topic']}-{it['partition']}" for it in plan if last in it["to"]]
    assert on_the_new
    await_replicas_on(quorum, last, on_the_new, topic)
    # A broker that is alive or has replicas cannot be unregistered.
    refused = run(bootstrap, "cluster", "remove-broker", str(last))
    assert (refused.returncode, f"broker {last} is live: stop it first" in refused.stderr) == (1, True)
    refused = run(bootstrap, "cluster", "add-voter", str(last))
    assert (refused.returncode, f"node {last} runs as a broker only" in refused.stderr) == (1, True)
    check_that_it_votes_once_its_configuration_says_so(quorum, last)
    assert "being moved" in run(bootstrap, *reassign, "--from", str(last)).stderr
    await_replicas_on(quorum, last, [])
    assert "nothing to move" in run(bootstrap, *reassign, "--from", str(last)).stderr
    quorum[last].stop()
    assert f"`minibroker cluster remove-broker {last}`" in run(bootstrap, "cluster", "status").stdout
    # Through a node that is not the controller, which forwards the request.
    through = next(it for it in EVERYBODY if it != quorum.controller())
    removed = cluster_command(quorum, "remove-broker", str(last), at=through)
    assert removed.stdout == f"node {last} is not registered any more; 3 brokers left\n"

    def is_unregistered() -> bool:
        said = run(bootstrap, "cluster", "status").stdout
        return "3 nodes" in said and f"node {last}" not in said

    eventually(is_unregistered, "no node knows the broker any more")


def check_that_it_votes_once_its_configuration_says_so(quorum: QuorumCluster, number: int) -> None:
    node = quorum[number]
    voting, *rest = node.settings
    node.stop()
    node.settings = (f"{voting},{number}@{quorum.address_of(number)}", *rest, "process.roles=broker,controller")
    node.restart()
    added = cluster_command(quorum, "add-voter", str(number), at=1)
    assert added.stdout == (
        f"node {number} at {quorum.address_of(number)} is a voter now; 4 voters, of which 3 must be running\n"
        "4 voters tolerate only as many failures as 3 voters, because 3 of them must be running. Add one with "
        "`minibroker cluster add-voter`, or remove one with `minibroker cluster remove-voter`\n"
    )
    assert sorted(voters(quorum, at=number)) == [*EVERYBODY, number]
    removed = cluster_command(quorum, "remove-voter", str(number), at=1)
    assert removed.stdout == f"node {number} is not a voter any more; 3 voters, of which 2 must be running\n"


def check_what_is_said_without_a_controller(cluster: QuorumCluster, left: int) -> None:
    """All nodes but one are killed; that one goes on serving, with the metadata that it had."""
    killed = [it for it in EVERYBODY if it != left]
    for number in killed:
        cluster[number].kill()

    def status() -> str:
        said = run(cluster.address_of(left), "cluster", "status").stdout
        return said if "there is no controller: no majority" in said else ""

    said = eventually(status, "it is noticed")
    who = ", ".join(map(str, killed))
    assert f"start nodes {who}, which do not answer, and the nodes in controller.quorum.voters" in said
    assert said.count("no answer") == 2
    created = run(cluster.address_of(left), "topics", "create", "nobodys")
    assert created.returncode == 1
    assert "there is no controller at the moment, so the request failed" in created.stderr


def test_a_new_cluster_says_whom_it_waits_for(tmp_path: Path) -> None:
    cluster = QuorumCluster(tmp_path)
    with closing(cluster):
        for number in (1, 2):
            cluster[number].begin()
        words = "waiting for all voters [1, 2, 3]: a new cluster begins when each of them is up; no answer from [3]"
        for number in (1, 2):
            eventually(lambda n=number: words in cluster[n].log(), f"node {number} says it")  # type: ignore[misc]
        said = run(cluster.bootstrap, "cluster", "status")
        assert said.returncode == 1
        assert "a node refuses clients until it has joined its cluster, and its log names the nodes" in said.stderr
        cluster[3].begin()
        for number in EVERYBODY:
            cluster[number].await_ready()
        left = cluster.controller()
        check_what_is_said_without_a_controller(cluster, left)
        cluster[left].kill()
        # After the first election a majority is enough, and a node that waits for it says so.
        cluster[1].begin()
        words = "waiting until a majority of the voters [1, 2, 3] is up; no answer from [2, 3]"
        eventually(lambda: words in cluster[1].log(), "node 1 says it")


class Pair(QuorumCluster):
    """Two nodes, of which one is a voter."""

    voters = 1


def test_a_node_that_was_away_leads_again_without_a_command(tmp_path: Path) -> None:
    with Pair(tmp_path, "leader.imbalance.check.interval.seconds=1", size=2) as pair:
        topic = pair.create(unique("balance"), [[2, 1]])
        pair[2].stop()
        assert pair.leader(topic, among=[1]) == 1
        pair[2].restart()
        eventually(lambda: (state := pair.state(topic, at=1)) and state.leader == 2, "node 2 leads again")
        assert not any(node.complaints() for node in pair.nodes.values())


def test_a_machine_with_a_copied_node_id_evicts_no_broker(quorum: QuorumCluster, tmp_path: Path) -> None:
    """Neither of two processes with one node.id can know which of them is meant, but one of them has the records."""
    decides = quorum.controller()
    follows = next(it for it in EVERYBODY if it != decides)

    def copy_of(number: int) -> QuorumNode:
        # The whole configuration file was copied, and the disk is empty.
        secret = f"minibroker.cluster.secret.file={quorum.secret}"
        settings = (*quorum[number].settings, "broker.session.timeout.ms=1000", secret)
        return QuorumNode(number, tmp_path / f"copy{number}", settings)

    with closing(copy_of(decides)) as leader, closing(copy_of(follows)) as follower:
        for copy in (leader, follower):
            copy.begin()
        words = f"two processes run as node {follows}, each with a disk of its own"
        eventually(lambda: words in cluster_command(quorum, "status", at=decides).stdout, "status names it")
        assert [it.await_end() for it in (leader, follower)] == [1, 1]
        words = f"another process with node.id {decides} leads the voters [1, 2, 3]"
        assert [words in it for it in leader.log().splitlines()] == [True, True]
        words = (
            f"node {follows} is registered and live at {quorum.address_of(follows)}, with another data directory than "
        )
        assert [f"node {follows} is registered and live" in it for it in follower.log().splitlines()] == [True, True]
        assert words in follower.log()
        for copy in (leader, follower):
            assert copy.log().endswith("this node ends. Give it another node.id, or stop the other process first\n")
    assert quorum.living() == list(EVERYBODY)
    assert quorum.controller() == decides


def test_one_node_becomes_three_when_the_others_come_to_it(tmp_path: Path) -> None:
    """As `docs/operations/three-machines.md` says, with one of the two others."""
    with Pair(tmp_path, size=2) as pair:
        one, two = pair[1], pair[2]
        topic = pair.create(unique("kept"), [[1]])
        alone, both = one.settings, (f"{one.settings[0]},2@{two.address}", *one.settings[1:])
        # A node that names itself among the voters from the beginning would begin another cluster.
        two.kill()
        shutil.rmtree(two.data)
        two.settings = both
        two.begin()
        eventually(lambda: "[1] are of another cluster, which has begun without" in two.log(), "node 2 says so")
        two.kill()
        shutil.rmtree(two.data)
        two.settings = alone
        two.restart()
        two.stop()
        two.settings = both
        two.restart()
        assert "by its log, cluster" in two.log()
        assert run(one.address, "cluster", "add-voter", "2").returncode == 0
        assert sorted(voters(pair, at=1)) == [1, 2]
        assert pair.state(topic, at=2) is not None
        # The voters in the log count; the configuration may now name the same.
        one.stop()
        one.settings = both
        one.restart()
        assert "by its log, cluster" not in one.logs[-1].read_text()


def voters(quorum: QuorumCluster, *, at: int) -> dict[int, bytes]:
    """The voters, each with its directory id."""
    state = quorum.quorum(at=at)
    return {} if state is None else {it.replica_id: bytes(it.replica_directory_id) for it in state.current_voters}


def run(bootstrap: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "minibroker.cli", *words, "--bootstrap-server", bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def cluster_command(quorum: QuorumCluster, *words: str, at: int) -> "subprocess.CompletedProcess[str]":
    return run(quorum.address_of(at), "cluster", *words)


def ask(quorum: QuorumCluster, request: Any, *, at: int) -> tuple[int, str | None]:
    with Client(quorum[at].address) as client:
        response = client.send(request)
    return response.error_code, response.error_message


def test_a_voter_that_lost_its_disk_is_an_observer_until_it_is_added_again(quorum: QuorumCluster) -> None:
    decides = quorum.controller()
    lost, other = (it for it in EVERYBODY if it != decides)
    topic = quorum.create(unique("disk"), [[lost, decides, other]], min_insync_replicas=2)
    eventually(lambda: len(voters(quorum, at=decides)) == 3, "all voters are known")
    before = voters(quorum, at=decides)
    with Sender(quorum, topic) as sender:
        sender.await_acks()
        quorum[lost].kill()
        shutil.rmtree(quorum[lost].data)
        # It comes back with another directory id, has left the in-sync replicas, and catches up again.
        quorum[lost].restart()
        quorum.await_isr(topic, *EVERYBODY)
        sender.await_acks()
        sender.finish()
    sender.check()
    state = quorum.quorum(at=other)
    assert state is not None
    known = [it for it in state.observers if it.replica_id == lost]
    now = bytes(max(known, key=lambda it: it.last_fetch_timestamp).replica_directory_id)
    assert now != before[lost]
    # It does not vote, and cannot be added while its old directory id is a voter.
    listener = VoterListener(name="CONTROLLER", host="127.0.0.1", port=int(quorum.address_of(lost).rpartition(":")[2]))
    add = AddRaftVoterRequest(timeout_ms=10_000, voter_id=lost, voter_directory_id=now, listeners=[listener])
    assert ask(quorum, add, at=other)[0] == ErrorCode.DUPLICATE_VOTER
    unknown = RemoveRaftVoterRequest(voter_id=lost, voter_directory_id=now)
    assert ask(quorum, unknown, at=other)[0] == ErrorCode.VOTER_NOT_FOUND
    # The cluster itself tells an operator what to do about it.
    commands = [f"minibroker cluster {verb}-voter {lost}" for verb in ("remove", "add")]
    said = cluster_command(quorum, "status", at=other)
    assert all(f"`{command}`" in said.stdout for command in commands)
    refused = cluster_command(quorum, "add-voter", str(lost), at=other)
    assert refused.returncode == 1
    assert f"with the disk that it had before: if that disk is lost, first run `{commands[0]}`" in refused.stderr
    removed = cluster_command(quorum, "remove-voter", str(lost), at=other)
    assert removed.stdout.startswith(
        f"node {lost} is not a voter any more; 2 voters, of which 2 must be running\n2 voters: if one "
    )
    again = cluster_command(quorum, "remove-voter", str(lost), at=other)
    assert (again.returncode, "is not a voter: the voters are" in again.stderr) == (1, True)
    added = cluster_command(quorum, "add-voter", str(lost), at=lost)
    said_now = f"node {lost} at {quorum.address_of(lost)} is a voter now; 3 voters, of which 2 must be running\n"
    assert added.stdout == said_now
    assert voters(quorum, at=lost) == {**before, lost: now}
    assert "another disk" not in cluster_command(quorum, "status", at=decides).stdout
    again = cluster_command(quorum, "add-voter", str(lost), at=lost)
    assert (again.returncode, "is a voter already" in again.stderr) == (1, True)
    absent = cluster_command(quorum, "add-voter", "9", at=lost)
    assert (absent.returncode, "does not follow the metadata: start it first" in absent.stderr) == (1, True)
    # Its vote counts: with one of the other voters down there is a majority with it.
    quorum[decides].kill()
    assert quorum.controller(among=[lost, other])
    quorum.create(unique("decided"), [[lost, other]], through=lost)


def test_a_node_with_the_data_of_another_cluster_ends_and_says_why(quorum: QuorumCluster) -> None:
    node = quorum[2]
    node.stop()
    properties, log = node.data / "meta.properties", next((node.data / "__cluster_metadata-0").glob("*.log"))
    text, data = properties.read_text(), log.read_bytes()
    try:
        properties.write_text(text.replace("cluster.id=", "cluster.id=x"))
        node.begin()
        assert node.await_end() == 1
        # The refusal comes from the node that it asks first: a voter it fetches from, or the controller it knew before.
        last = node.log().splitlines()[-1]
        assert "are of another cluster" in last or "the request is meant for another cluster" in last
        assert not node.complaints(), node.complaints()
        # It has copied nothing from this cluster.
        assert log.read_bytes() == data
    finally:
        properties.write_text(text)
