"""Transactions over many partitions: state machines without IO. The package `coordinators` runs them on a node."""
