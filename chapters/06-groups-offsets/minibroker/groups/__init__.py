"""Consumer groups and committed offsets: state machines without IO. The package `coordinators` runs them on a node."""
