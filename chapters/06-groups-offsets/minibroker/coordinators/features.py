"""The feature `group.version`: level 1 says that groups of the new protocol are allowed (KIP-848). A pure module."""

from minibroker.metadata.records import METADATA_VERSION, METADATA_VERSION_LEVEL, SUPPORTED_FEATURES, LevelRange

GROUP_VERSION = "group.version"
GROUP_VERSION_LEVEL = 1

SUPPORTED = {**SUPPORTED_FEATURES, GROUP_VERSION: LevelRange(0, GROUP_VERSION_LEVEL)}
"""The levels that a broker with groups announces."""

FINALIZED = {METADATA_VERSION: METADATA_VERSION_LEVEL, GROUP_VERSION: GROUP_VERSION_LEVEL}
"""The levels that the controller of a cluster with groups sets, if they are not set yet."""
