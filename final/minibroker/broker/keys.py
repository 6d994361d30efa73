"""Every configuration key that the finished broker knows: those of all chapters, and the catalogue of the others."""

import importlib

_MODULES = (
    "minibroker.replication.keys",
    "minibroker.raft.keys",
    "minibroker.controller.keys",
    "minibroker.broker.catalogue",
)


def declare_every_key() -> None:
    """Import the modules that declare keys; to be called before a configuration is read."""
    for name in _MODULES:
        importlib.import_module(name)
