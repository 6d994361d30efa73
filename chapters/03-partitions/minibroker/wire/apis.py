"""The APIs: their keys in Kafka, and their declared tables. A pure module.

A table declares its API when its module is imported: `declare(ProduceRequest, ProduceResponse)`. A broker imports only
the tables of the APIs that it serves, and a client only the tables of its requests. So neither knows an API of a later
chapter.
"""

import enum
import importlib
import pkgutil
from types import ModuleType
from typing import NamedTuple

from minibroker.wire.errors import WireError
from minibroker.wire.fields import NEWEST
from minibroker.wire.schema import Request, Response


class ApiKey(enum.IntEnum):
    """Kafka's numbers for its APIs. Only the APIs in `APIS` have a table."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    GET_REPLICA_LOG_INFO = 93


class Api(NamedTuple):
    """One API: its request, its response, and the versions that the tables have of both."""

    key: int
    name: str  # Kafka's name, such as CreateTopics
    request: type[Request]
    response: type[Response]
    min_version: int
    max_version: int
    flexible_from: int  # higher than every version if no version is flexible
    response_tags_from: int  # the first version whose response header ends with tagged fields

    def has(self, version: int) -> bool:
        """Whether the tables have a version."""
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether a version is flexible. Then the request header ends with tagged fields."""
        return version >= self.flexible_from


APIS: dict[int, Api] = {}
"""Every API whose table is imported, by its key."""


def declare(request: type[Request], response: type[Response]) -> Api:
    """Register an API. Its table calls this after both messages are defined."""
    schema = request.schema
    assert schema.key is not None
    assert schema.versions is not None
    assert schema.flexible is not None
    assert schema.key not in APIS, f"{schema.name} is declared twice"
    flexible_from = schema.flexible.first if schema.flexible.last >= 0 else NEWEST + 1
    name = schema.name.removesuffix("Request")
    first, last = schema.versions.first, schema.versions.last
    # A client decodes an ApiVersions response before it knows the broker's versions. So the header of that response
    # never has tags.
    tags_from = NEWEST + 1 if schema.key == ApiKey.API_VERSIONS else flexible_from
    api = Api(schema.key, name, request, response, first, last, flexible_from, tags_from)
    APIS[api.key] = api
    return api


def declare_all(tables: ModuleType) -> None:
    """Import every table of a package, for tools that decode any frame."""
    for found in pkgutil.iter_modules(tables.__path__):
        importlib.import_module(f"{tables.__name__}.{found.name}")


def message_named(name: str) -> type[Request] | type[Response]:
    """The class of a request or a response, by its name in the tables."""
    for api in APIS.values():
        for message in (api.request, api.response):
            if message.__name__ == name:
                return message
    names = ", ".join(api.name for api in APIS.values())
    raise WireError(
        f"there is no message {name}: write Request or Response after one of {names}, such as ProduceRequest"
    )
