"""The features of a broker with coordinators. A pure module.

`group.version` 1 allows groups of the new protocol (KIP-848). `transaction.version` 2 tells producers that each
transaction has an epoch of its own, and that the broker adds partitions by itself (KIP-890).
"""

from minibroker.controller.deciding import FIRST_FEATURES, SUPPORTED_BY_CONTROLLER
from minibroker.metadata.records import LevelRange

GROUP_VERSION = "group.version"
GROUP_VERSION_LEVEL = 1
TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_LEVEL = 2

SUPPORTED = {
    **SUPPORTED_BY_CONTROLLER,
    GROUP_VERSION: LevelRange(0, GROUP_VERSION_LEVEL),
    TRANSACTION_VERSION: LevelRange(0, TRANSACTION_VERSION_LEVEL),
}
"""The range of levels of each feature that a broker with coordinators supports."""

FINALIZED = {
    **FIRST_FEATURES,
    GROUP_VERSION: GROUP_VERSION_LEVEL,
    TRANSACTION_VERSION: TRANSACTION_VERSION_LEVEL,
}
"""The level of each feature that the controller sets, if the feature has no level yet."""
