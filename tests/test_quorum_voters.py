"""Voters that were added and removed: no configuration names them, and all find each other again (KIP-853)."""

import shutil
from pathlib import Path
from typing import Any

from brokers import eventually, unique
from clusters import QuorumCluster

from minibroker.clients.blocking import Client
from minibroker.raft.tables.add_raft_voter import AddRaftVoterRequest, VoterListener
from minibroker.raft.tables.remove_raft_voter import RemoveRaftVoterRequest
from minibroker.wire.codes import ErrorCode


class Couple(QuorumCluster):
    """Two voters, which the configuration of every node names."""

    voters = 2


def ask(quorum: QuorumCluster, request: Any) -> None:
    with Client(quorum[1].address) as client:
        response = client.send(request)
    assert response.error_code == ErrorCode.NONE, response.error_message


def replace_voter(quorum: QuorumCluster, old: int, new: int) -> None:
    state = quorum.quorum(at=1)
    assert state is not None
    directories = {it.replica_id: bytes(it.replica_directory_id) for it in [*state.current_voters, *state.observers]}
    host, _, port = quorum.address_of(new).rpartition(":")
    listener = VoterListener(name="CONTROLLER", host=host, port=int(port))
    ask(
        quorum,
        AddRaftVoterRequest(timeout_ms=10_000, voter_id=new, voter_directory_id=directories[new], listeners=[listener]),
    )
    ask(quorum, RemoveRaftVoterRequest(voter_id=old, voter_directory_id=directories[old]))


def let_lead(quorum: QuorumCluster, number: int) -> None:
    """Kill any other leader; it comes back into an election that has begun without it."""
    for _ in range(10):
        decides = quorum.controller()
        if decides == number:
            return
        quorum[decides].kill()
        quorum[decides].restart()
    raise AssertionError(f"node {number} never leads")


def test_a_voter_that_was_added_is_found_by_a_new_node_and_by_all_after_a_full_stop(tmp_path: Path) -> None:
    with Couple(tmp_path, size=2) as quorum:
        quorum.add(3).restart()
        eventually(lambda: (state := quorum.quorum(at=1)) and state.observers, "node 3 follows")
        replace_voter(quorum, 1, 3)
        let_lead(quorum, 3)
        # Its disk is empty. Its configuration names node 1, which is no voter now, and node 2, which does not lead.
        quorum.add(4).restart()
        assert "node 1 at" in quorum[4].log()
        assert "the voters of its cluster are [2, 3]: correct the setting" in quorum[4].log()
        for node in quorum.nodes.values():
            node.kill()
        # A node that is alone names the voters it waits for; it does not trust the leader that it remembers.
        quorum[2].begin()
        eventually(
            lambda: "until a majority of the voters [2, 3] is up" in quorum[2].logs[-1].read_text(), "it says so"
        )
        for number in (1, 3, 4):
            quorum[number].begin()
        for node in quorum.nodes.values():
            node.await_ready()
        quorum.create(unique("again"), [[4, 3, 1]], through=4)
        # A node that is to vote and has lost its disk finds the cluster, though other voters have begun it.
        quorum[4].kill()
        shutil.rmtree(quorum[4].data)
        quorum[4].settings = (
            "controller.quorum.voters=" + ",".join(f"{it}@{quorum.address_of(it)}" for it in (2, 3, 4)),
        )
        quorum[4].restart()
        assert not any(node.complaints() for node in quorum.nodes.values())
