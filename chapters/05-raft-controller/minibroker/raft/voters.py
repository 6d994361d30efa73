"""The voters: nodes, each with the directory of its log. A pure module.

A voter promises two things: not to vote twice in an epoch, and not to forget what it has acknowledged. Both promises
depend on the disk. So a voter is not a node but a node *with its directory* (KIP-853): a node that comes back with an
empty disk has another directory id, and knows nothing of the promises on the old disk. It neither votes nor counts
until it is added as a new voter.

The set is a record of the log that it governs, and is in force as soon as it is appended, committed or not. Changing
one voter at a time is safe because every majority of one set overlaps with every majority of the next.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.wire.schema import Message, Struct, array, int16, int32, string, struct, uint16, uuid
from minibroker.wire.uuids import NO_UUID, uuid_text


class VoterKey(NamedTuple):
    """A node and the id of the directory of its log. Without an id, the node matches with any directory."""

    node_id: int
    directory_id: bytes = NO_UUID

    def names(self, other: "VoterKey") -> bool:
        """Whether this key names that voter; a key without a directory names the node with any directory."""
        return self.node_id == other.node_id and self.directory_id in (NO_UUID, other.directory_id)

    def __str__(self) -> str:
        return f"{self.node_id}" if self.directory_id == NO_UUID else f"{self.node_id}:{uuid_text(self.directory_id)}"


class Voter(NamedTuple):
    """A voter, and its address for nodes that have no metadata yet."""

    key: VoterKey
    host: str = ""
    port: int = 0


@dataclass(frozen=True)
class VoterSet:
    """The voters by node id. A set is immutable; a change returns another set."""

    voters: Mapping[int, Voter]

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> "VoterSet":
        """The set of these voters."""
        return cls({voter.key.node_id: voter for voter in voters})

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.voters))

    def __len__(self) -> int:
        return len(self.voters)

    def __contains__(self, key: VoterKey) -> bool:
        known = self.voters.get(key.node_id)
        return known is not None and known.key.names(key)

    @property
    def majority(self) -> int:
        """The smallest number of voters that is more than half."""
        return len(self.voters) // 2 + 1

    def key_of(self, node_id: int) -> VoterKey:
        """The key of a voter."""
        return self.voters[node_id].key

    def others(self, node_id: int) -> list[int]:
        """All voters except one node, which need not be a voter."""
        return [it for it in self if it != node_id]

    def with_voter(self, voter: Voter) -> "VoterSet":
        """The set with one more voter, or with a voter replaced."""
        return VoterSet({**self.voters, voter.key.node_id: voter})

    def without(self, node_id: int) -> "VoterSet":
        """The set without a voter."""
        return VoterSet({it: voter for it, voter in self.voters.items() if it != node_id})

    def unbound(self, key: VoterKey) -> bool:
        """Whether the set has the node, but not its directory yet."""
        known = self.voters.get(key.node_id)
        return known is not None and known.key.directory_id == NO_UUID and key.directory_id != NO_UUID


# The record -----------------------------------------------------------------------------------------------------------


class VoterEndpoint(Struct):
    """A listener of a voter."""

    name: str = string()
    host: str = string()
    port: int = uint16()


class KRaftVersionFeature(Struct):
    """The versions of the voters record that a voter can read."""

    min_supported_version: int = int16()
    max_supported_version: int = int16()


class VoterEntry(Struct):
    """One voter of the set."""

    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    endpoints: list[VoterEndpoint] = array(VoterEndpoint)
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature)


class VotersRecord(Message, versions="0", flexible="0+"):
    """The voter set from this offset on. Kafka's control record of type 6."""

    version: int = int16()
    voters: list[VoterEntry] = array(VoterEntry)


def encode_voters(voters: VoterSet) -> bytes:
    """The value of the record."""
    entries = [
        VoterEntry(
            voter_id=it.key.node_id,
            voter_directory_id=it.key.directory_id,
            endpoints=[VoterEndpoint(name="CONTROLLER", host=it.host, port=it.port)],
            kraft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
        )
        for it in (voters.voters[node_id] for node_id in voters)
    ]
    return VotersRecord(version=0, voters=entries).encode(0)


def decode_voters(value: bytes) -> VoterSet:
    """The voter set in a record."""
    record, _end = VotersRecord.decode(memoryview(value), 0, 0)
    return VoterSet.of(
        Voter(
            VoterKey(it.voter_id, bytes(it.voter_directory_id)),
            it.endpoints[0].host if it.endpoints else "",
            it.endpoints[0].port if it.endpoints else 0,
        )
        for it in record.voters
    )
