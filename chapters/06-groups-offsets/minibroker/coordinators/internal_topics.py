"""Internal topics: how they are created, and which rules their batches must meet. A pure module."""

from collections.abc import Callable, Mapping

from minibroker.groups.keys import OFFSETS_TOPIC_REPLICATION_FACTOR, GroupSettings
from minibroker.metadata.config_keys import ConfigKey
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.image import Image
from minibroker.metadata.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, is_internal
from minibroker.partitions.admission import Incoming, Origin, Rule, Rules, is_whole, rules_of, small_enough
from minibroker.partitions.errors import Refused
from minibroker.partitions.producers import ProducerStates
from minibroker.replication.keys import quorum_voters
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.keys import STATE_LOG_MIN_ISR, TransactionSettings
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.create_topics import CreatableTopic, CreatableTopicConfig

CREATE_MS_MAX = 10_000


# Rules ----------------------------------------------------------------------------------------------------------------


def rules_for(name: TopicPartition, others: Callable[[TopicPartition], Rules] = lambda _name: rules_of) -> Rules:
    """The admission rules of a partition. Only coordinators write to internal topics; `others` is for other topics."""
    return _internal_rules if is_internal(name.topic) else others(name)


def _internal_rules(config: TopicConfig, _producers: ProducerStates) -> list[Rule]:
    # The other rules check the batches of clients. A coordinator's batches are correct by construction.
    return [comes_from_a_coordinator, small_enough(config.max_message_bytes), is_whole]


def comes_from_a_coordinator(it: Incoming) -> None:
    """Refuse a batch from a client."""
    if it.origin is Origin.CLIENT:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "only the broker itself writes to an internal topic")


# Creation -------------------------------------------------------------------------------------------------------------


def offsets_topic(settings: GroupSettings, replication_factor: int) -> CreatableTopic:
    """The request to create `__consumer_offsets`."""
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(settings.offsets_topic_segment_bytes),
    }
    return _creatable(GROUP_METADATA_TOPIC, settings.offsets_topic_num_partitions, replication_factor, configs)


def transactions_topic(settings: TransactionSettings, config: NodeConfig, replication_factor: int) -> CreatableTopic:
    """The request to create `__transaction_state`.

    A lost record of it would be a lost outcome. So a batch needs two replicas, if the cluster has two nodes, and a
    replica that may lack records is never elected.
    """
    is_given = STATE_LOG_MIN_ISR.name in config.settings
    min_isr = settings.min_isr if is_given else min(settings.min_isr, replication_factor)
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min_isr),
        "segment.bytes": str(settings.segment_bytes),
        "unclean.leader.election.enable": "false",
    }
    return _creatable(TRANSACTION_STATE_TOPIC, settings.num_partitions, replication_factor, configs)


def _creatable(name: str, num_partitions: int, replication_factor: int, configs: Mapping[str, str]) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
    )


def replication_factor_of(
    config: NodeConfig, image: Image, key: ConfigKey[int] = OFFSETS_TOPIC_REPLICATION_FACTOR
) -> int:
    """The replication factor of an internal topic, which `key` configures.

    If the setting is configured, exactly that number is used, and the topic is not created while there are fewer
    brokers. Otherwise it is the size of the cluster, 3 at most. The size is the number of registered brokers, or of
    voters if there are more voters, because the nodes of a new cluster register one after the other.
    """
    wanted = key.of(config)
    if key.name in config.settings:
        return wanted
    return min(wanted, max(len(image.brokers), len(quorum_voters(config)), 1))
