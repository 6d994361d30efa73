"""All configuration keys of the finished broker: those of the chapters, and the catalogue of the others."""

import importlib

_MODULES = (
    "minibroker.replication.keys",
    "minibroker.raft.keys",
    "minibroker.controller.keys",
    "minibroker.groups.keys",
    "minibroker.transactions.keys",
    "minibroker.transfer.keys",
    "minibroker.broker.catalogue",
)


def declare_every_key() -> None:
    """Import the modules that declare keys. Call it before a configuration is read."""
    for name in _MODULES:
        importlib.import_module(name)
