"""Consumer groups and committed offsets: state machines without IO. `coordinators` runs them on a node."""
