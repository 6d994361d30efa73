"""All commands of this chapter under one name. A pure module.

decide(image, command) -> Decision(records, result)
"""

from minibroker.metadata.broker_commands import (
    PRODUCER_IDS_PER_BLOCK,
    AllocateProducerIds,
    ProducerIds,
    RegisterBroker,
    Registration,
)
from minibroker.metadata.config_commands import (
    AlterConfigs,
    AlteredResource,
    ConfigChange,
    ConfigOperation,
    ResourceChange,
)
from minibroker.metadata.decision import RECORDS_PER_COMMAND_MAX, Command, Decision, decide
from minibroker.metadata.topic_commands import (
    CreatedTopic,
    CreatePartitions,
    CreateTopics,
    DeletedTopic,
    DeleteTopics,
    GrownTopic,
    MorePartitions,
    NewTopic,
    TopicReference,
)

__all__ = [
    "PRODUCER_IDS_PER_BLOCK",
    "RECORDS_PER_COMMAND_MAX",
    "AllocateProducerIds",
    "AlterConfigs",
    "AlteredResource",
    "Command",
    "ConfigChange",
    "ConfigOperation",
    "CreatePartitions",
    "CreateTopics",
    "CreatedTopic",
    "Decision",
    "DeleteTopics",
    "DeletedTopic",
    "GrownTopic",
    "MorePartitions",
    "NewTopic",
    "ProducerIds",
    "RegisterBroker",
    "Registration",
    "ResourceChange",
    "TopicReference",
    "decide",
]
