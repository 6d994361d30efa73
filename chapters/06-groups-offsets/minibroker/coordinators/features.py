"""The feature `group.version`: level 1 allows groups of the new protocol (KIP-848). A pure module."""

from minibroker.controller.deciding import FIRST_FEATURES, SUPPORTED_BY_CONTROLLER
from minibroker.metadata.records import LevelRange

GROUP_VERSION = "group.version"
GROUP_VERSION_LEVEL = 1

SUPPORTED = {**SUPPORTED_BY_CONTROLLER, GROUP_VERSION: LevelRange(0, GROUP_VERSION_LEVEL)}
"""The range of levels of each feature that a broker with groups supports."""

FINALIZED = {**FIRST_FEATURES, GROUP_VERSION: GROUP_VERSION_LEVEL}
"""The level of each feature that the controller sets, if the feature has no level yet."""
