"""The configuration keys of the transaction coordinator, and their values. A pure module.

The keys and their defaults are Kafka's.
"""

from dataclasses import dataclass
from typing import ClassVar

from minibroker.metadata.config_keys import BOOLEAN, INT, SHORT, at_least, broker_key
from minibroker.metadata.configs import NodeConfig

_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS

TRANSACTIONAL_ID_EXPIRATION_MS = broker_key(
    "transactional.id.expiration.ms",
    INT,
    7 * 24 * _HOUR_MS,
    at_least(1),
    "How long a transactional id without an open transaction is kept after its last use.",
)
TRANSACTION_MAX_TIMEOUT_MS = broker_key(
    "transaction.max.timeout.ms",
    INT,
    15 * _MINUTE_MS,
    at_least(1),
    "The longest transaction timeout that a producer may ask for.",
)
TRANSACTION_ABORT_INTERVAL_MS = broker_key(
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    INT,
    10_000,
    at_least(1),
    "How often the coordinator looks for transactions that are open for longer than their timeout, and aborts them.",
)
TRANSACTION_REMOVE_INTERVAL_MS = broker_key(
    "transaction.remove.expired.transaction.cleanup.interval.ms",
    INT,
    _HOUR_MS,
    at_least(1),
    "How often the coordinator looks for transactional ids that have expired.",
)
TRANSACTION_PARTITION_VERIFICATION_ENABLE = broker_key(
    "transaction.partition.verification.enable",
    BOOLEAN,
    "true",
    None,
    "Whether a partition asks the coordinator before it accepts the first batch of a transaction (KIP-890).",
)
STATE_LOG_NUM_PARTITIONS = broker_key(
    "transaction.state.log.num.partitions",
    INT,
    50,
    at_least(1),
    "How many partitions __transaction_state is created with. Do not change it afterwards.",
)
STATE_LOG_REPLICATION_FACTOR = broker_key(
    "transaction.state.log.replication.factor",
    SHORT,
    3,
    at_least(1),
    "How many replicas __transaction_state is created with. If the key is set, the topic is not created while there "
    "are fewer brokers. Otherwise it gets one replica for each broker or voter, 3 at most.",
)
STATE_LOG_MIN_ISR = broker_key(
    "transaction.state.log.min.isr",
    INT,
    2,
    at_least(1),
    "The min.insync.replicas that __transaction_state is created with. If the key is not set, it is at most the number "
    "of replicas.",
)
STATE_LOG_SEGMENT_BYTES = broker_key(
    "transaction.state.log.segment.bytes",
    INT,
    100 * 1024**2,
    at_least(1),
    "The size of the segments that __transaction_state is created with.",
)
STATE_LOG_LOAD_BUFFER_SIZE = broker_key(
    "transaction.state.log.load.buffer.size",
    INT,
    5 * 1024**2,
    at_least(1),
    "How many bytes a new coordinator reads at once when it loads the transactions of a partition.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """All values that a transaction coordinator needs."""

    timeout_ms_max: int
    expiration_ms: int
    abort_interval_ms: int
    remove_interval_ms: int
    num_partitions: int
    min_isr: int
    segment_bytes: int
    load_buffer_size: int
    append_timeout_ms: ClassVar[int] = 5000
    """How long an answer may wait until the records before it are replicated."""
    compression_codec: ClassVar[int] = 0
    """The state of transactions is never compressed, as in Kafka."""

    @classmethod
    def of(cls, config: NodeConfig) -> "TransactionSettings":
        """The values of a broker."""
        return cls(
            timeout_ms_max=TRANSACTION_MAX_TIMEOUT_MS.of(config),
            expiration_ms=TRANSACTIONAL_ID_EXPIRATION_MS.of(config),
            abort_interval_ms=TRANSACTION_ABORT_INTERVAL_MS.of(config),
            remove_interval_ms=TRANSACTION_REMOVE_INTERVAL_MS.of(config),
            num_partitions=STATE_LOG_NUM_PARTITIONS.of(config),
            min_isr=STATE_LOG_MIN_ISR.of(config),
            segment_bytes=STATE_LOG_SEGMENT_BYTES.of(config),
            load_buffer_size=STATE_LOG_LOAD_BUFFER_SIZE.of(config),
        )
