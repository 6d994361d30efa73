"""Kafka's error codes: their names, their messages, and whether a retry may help. A pure module."""

import enum
from typing import Final

RETRIABLE: Final = True


class ErrorCode(enum.IntEnum):
    """The number in an `error_code` field. A number that is not listed here counts as UNKNOWN_SERVER_ERROR."""

    _message: str
    _is_retriable: bool

    def __new__(cls, code: int, message: str = "", is_retriable: bool = False) -> "ErrorCode":
        """Make a member that equals its number and has a message."""
        member = int.__new__(cls, code)
        member._value_ = code
        member._message = message
        member._is_retriable = is_retriable
        return member

    @classmethod
    def _missing_(cls, value: object) -> "ErrorCode | None":
        return cls.UNKNOWN_SERVER_ERROR if isinstance(value, int) else None

    @property
    def message(self) -> str:
        """What went wrong, in words for a person."""
        return self._message

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later, perhaps on another broker, so that a client should retry it."""
        return self._is_retriable

    UNKNOWN_SERVER_ERROR = -1, "the broker failed unexpectedly: see its log"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the offset is before the log's start or past its end"
    CORRUPT_MESSAGE = 2, "the batch is damaged: its checksum or its structure is wrong", RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "this broker has no such topic or partition", RETRIABLE
    INVALID_FETCH_SIZE = 4, "the requested fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment", RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "this broker is not the partition's leader, or has no replica of it", RETRIABLE
    REQUEST_TIMED_OUT = 7, "the request was not completed within its timeout", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "the replica is not available on this broker", RETRIABLE
    MESSAGE_TOO_LARGE = 10, "the batch is larger than max.message.bytes allows"
    STALE_CONTROLLER_EPOCH = 11, "the controller's epoch is old: another controller was elected"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata text of a committed offset is too long"
    NETWORK_EXCEPTION = 13, "the connection was lost before the response arrived", RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still reading its state", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator at the moment", RETRIABLE
    NOT_COORDINATOR = 16, "another broker is the coordinator", RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "the topic's name is not valid"
    RECORD_LIST_TOO_LARGE = 18, "the batch is larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, "not written: fewer replicas are in sync than min.insync.replicas requires", RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "written, but to fewer replicas than min.insync.replicas requires", RETRIABLE
    INVALID_REQUIRED_ACKS = 21, "acks must be 0, 1 or -1 (all)"
    ILLEGAL_GENERATION = 22, "the generation is not the group's current one: join again"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member shares no protocol with the group"
    INVALID_GROUP_ID = 24, "the group's name is not valid"
    UNKNOWN_MEMBER_ID = 25, "the group has no member with this id: join again"
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is outside the broker's limits"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing: join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the offset commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, "the client is not authorized for this topic"
    GROUP_AUTHORIZATION_FAILED = 30, "the client is not authorized for this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "the client is not authorized for this cluster operation"
    INVALID_TIMESTAMP = 32, "the timestamp is too far from the broker's clock"
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "this request is not allowed yet: authenticate first"
    UNSUPPORTED_VERSION = 35, "the broker does not support this version of the API"
    TOPIC_ALREADY_EXISTS = 36, "a topic with this name exists already"
    INVALID_PARTITIONS = 37, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, "the replica assignment is not valid"
    INVALID_CONFIG = 40, "a configuration name or value is not valid"
    NOT_CONTROLLER = 41, "another node is the controller", RETRIABLE
    INVALID_REQUEST = 42, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the format of the records does not allow this"
    POLICY_VIOLATION = 44, "a policy of the broker forbids this request"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "the producer's sequence has a gap: a batch before this one is missing"
    DUPLICATE_SEQUENCE_NUMBER = 46, "this batch has been written already"
    INVALID_PRODUCER_EPOCH = 47, "a newer producer has the same id"
    INVALID_TXN_STATE = 48, "the transaction is in a state that does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id does not belong to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is above transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, "the producer's previous transaction is not finished yet", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "another broker coordinates this transaction now"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "the client is not authorized for this transactional id"
    SECURITY_DISABLED = 54, "the cluster runs without this security feature"
    OPERATION_NOT_ATTEMPTED = 55, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "the broker's disk has failed", RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "the credentials are wrong"
    UNKNOWN_PRODUCER_ID = 59, "the broker no longer knows this producer: its records have been deleted"
    REASSIGNMENT_IN_PROGRESS = 60, "the partition is already being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "delegation tokens cannot be requested on this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "the client is not authorized for this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "this kind of principal is not supported"
    NON_EMPTY_GROUP = 68, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the fetch session is not known: start a new one", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session is at another epoch: start a new one", RETRIABLE
    LISTENER_NOT_FOUND = 72, "the leader lacks the listener on which the request arrived", RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "topics cannot be deleted, because delete.topic.enable is false"
    FENCED_LEADER_EPOCH = 74, "the leader epoch is older than the broker's: refresh metadata", RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch is newer than the broker's: the broker will learn it soon", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "this compression codec is not supported for this request"
    STALE_BROKER_EPOCH = 77, "the broker has registered again under a newer epoch"
    OFFSET_NOT_AVAILABLE = 78, "a new leader does not know its high watermark yet", RETRIABLE
    MEMBER_ID_REQUIRED = 79, "join again with the member id in this answer"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not available", RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "the group has reached its maximum size"
    FENCED_INSTANCE_ID = 82, "another member has the same group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no replica is eligible to become leader", RETRIABLE
    ELECTION_NOT_NEEDED = 84, "the partition has the right leader already", RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "the partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group is subscribed to this topic"
    INVALID_RECORD = 87, "a record was refused by the broker's checks"
    UNSTABLE_OFFSET_COMMIT = 88, "a transaction that commits offsets is not finished yet", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "a quota is exceeded: try again later", RETRIABLE
    PRODUCER_FENCED = 90, "a newer producer has the same transactional id"
    RESOURCE_NOT_FOUND = 91, "there is no such resource"
    DUPLICATE_RESOURCE = 92, "a resource is named twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential does not meet the broker's rules"
    INCONSISTENT_VOTER_SET = 94, "sender and receiver have different voter sets"
    INVALID_UPDATE_VERSION = 95, "the feature cannot have this version"
    FEATURE_UPDATE_FAILED = 96, "the features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "the principal of a forwarded request cannot be decoded"
    SNAPSHOT_NOT_FOUND = 98, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the position is not inside the snapshot"
    UNKNOWN_TOPIC_ID = 100, "this broker has no topic with this id", RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "another live broker is registered with this id"
    BROKER_ID_NOT_REGISTERED = 102, "no broker is registered with this id"
    INCONSISTENT_TOPIC_ID = 103, "the log's topic id is not the one in the request", RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "the request is meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "a fetch session mixes topic ids and topic names", RETRIABLE
    INELIGIBLE_REPLICA = 107, "a replica is not eligible to join the ISR"
    NEW_LEADER_ELECTED = 108, "done, but the partition has another leader now"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the member has been fenced: give up all partitions and join again"
    UNRELEASED_INSTANCE_ID = 111, "another member still holds this instance id"
    UNSUPPORTED_ASSIGNOR = 112, "the group does not support this assignor"
    STALE_MEMBER_EPOCH = 113, "the member's epoch is old: the next heartbeat returns the new one"
    MISMATCHED_ENDPOINT_TYPE = 114, "the request needs a controller's endpoint, not a broker's, or the reverse"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "this kind of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, "there is no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription is not known"
    TELEMETRY_TOO_LARGE = 118, "the telemetry data are too large"
    INVALID_REGISTRATION = 119, "the controller refuses the broker's registration"
    TRANSACTION_ABORTABLE = 120, "the transaction failed: abort it and continue"
    INVALID_RECORD_STATE = 121, "the record cannot be acknowledged in its state"
    SHARE_SESSION_NOT_FOUND = 122, "the share session is not known", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session is at another epoch", RETRIABLE
    FENCED_STATE_EPOCH = 124, "the share group's state has another epoch"
    INVALID_VOTER_KEY = 125, "the request names another voter than the node that received it"
    DUPLICATE_VOTER = 126, "the voter is in the voter set already"
    VOTER_NOT_FOUND = 127, "the voter is not in the voter set"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, "the client's metadata are too old: start from the bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, "the streams topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the epoch of the streams topology is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, "the streams topology is outdated"
    SHARE_SESSION_LIMIT_REACHED = 133, "the broker has reached its limit of share sessions", RETRIABLE
