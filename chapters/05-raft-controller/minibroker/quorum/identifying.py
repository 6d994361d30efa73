"""Finds the cluster id of a new data directory. A node asks the voters for it, or derives it from their addresses."""

import asyncio
import hashlib
import logging
import os
from collections import Counter

from minibroker.client.errors import ClientError
from minibroker.controller.keys import process_roles
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import META_PROPERTIES, Identity, identify
from minibroker.partitions.store import METADATA
from minibroker.raft.tables.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumTopic,
)
from minibroker.replicas.peers import Peers
from minibroker.replication.keys import QuorumVoter, quorum_voters
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse
from minibroker.wire.uuids import uuid_text

log = logging.getLogger(__name__)

_ASK_MS = 3000
_RETRY_S = 0.05


class Identification:
    """Finds the cluster id of one node's directory."""

    def __init__(self, config: NodeConfig, peers: Peers) -> None:
        self._config = config
        self._peers = peers

    async def identify(self) -> Identity:
        """The cluster id of the directory. A new directory gets one: a voter may derive it, other nodes ask the voters.

        A node whose directory has a cluster id must not wait for an answer: it may be the voter for which all others
        wait. The quorum checks later that all nodes are of the same cluster.
        """
        config = self._config
        path = config.log_dirs[0]
        if os.path.exists(f"{path}/{META_PROPERTIES}"):
            return identify(path, config.node_id)
        if "controller" in process_roles(config):
            cluster_id = await self._cluster_of_most() or self._cluster_of_voters()
        else:
            cluster_id = await self._ask_for_cluster_id()
        return identify(path, config.node_id, cluster_id=cluster_id)

    async def _cluster_of_most(self) -> str | None:
        """The cluster id that a majority of the voters has, or None.

        The id of an existing cluster cannot be derived from the voters: the cluster may have begun with other voters.
        """
        voters = quorum_voters(self._config)
        others = [it for it in voters if it.node_id != self._config.node_id]
        answers = await asyncio.gather(*map(self._ask_voter, others), return_exceptions=True)
        found = Counter(
            answer[0]
            for it, answer in zip(others, answers, strict=True)
            if not isinstance(answer, BaseException) and it.node_id in answer[1]
        )
        return next((cluster_id for cluster_id, count in found.items() if count > len(voters) // 2), None)

    def _cluster_of_voters(self) -> str | None:
        """A cluster id derived from the configured voters, so that all nodes of a new cluster get the same one."""
        voters = quorum_voters(self._config)
        if not voters:
            return None
        names = ",".join(f"{it.node_id}@{it.host}:{it.port}" for it in sorted(voters))
        return uuid_text(hashlib.sha256(names.encode()).digest()[:16])

    async def _ask_for_cluster_id(self) -> str:
        """Ask one voter after the other until one has joined its cluster. Nodes may be started in any order."""
        told: set[str] = set()
        while True:
            wrong = []
            for voter in quorum_voters(self._config):
                try:
                    cluster_id, voters = await self._ask_voter(voter)
                    if voter.node_id in voters:
                        return cluster_id
                    place = f"node {voter.node_id} at {voter.host}:{voter.port}"
                    wrong.append(f"{place}, but the voters of its cluster are {voters}: correct the setting")
                    _tell_once(told, f"controller.quorum.voters has {wrong[-1]}")
                except ClientError as error:
                    if not told:
                        _tell_once(told, f"waiting until a voter answers; node {voter.node_id} did not: {error}")
            # A removed voter may stay configured for a while. But if none of the configured nodes is a voter, they are
            # of another cluster.
            if len(wrong) == len(quorum_voters(self._config)):
                raise BrokerFailure(f"controller.quorum.voters has {wrong[0]}")
            await asyncio.sleep(_RETRY_S)

    async def _ask_voter(self, voter: QuorumVoter) -> tuple[str, list[int]]:
        """The cluster id of a configured voter, and the voters of its cluster."""
        metadata: MetadataResponse = await self._peers.send(
            voter.node_id, MetadataRequest(topics=[]), timeout_ms=_ASK_MS
        )
        topic = QuorumTopic(topic_name=METADATA.topic, partitions=[QuorumPartition(partition_index=0)])
        request = DescribeQuorumRequest(topics=[topic])
        response: DescribeQuorumResponse = await self._peers.send(voter.node_id, request, timeout_ms=_ASK_MS)
        return metadata.cluster_id or "", sorted(it.node_id for it in response.nodes)


def _tell_once(told: set[str], line: str) -> None:
    if line not in told:
        told.add(line)
        log.warning("%s", line)
