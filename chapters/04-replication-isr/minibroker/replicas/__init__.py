"""The driver of replication: it carries what replicas say to each other over the wire, and brings them the time."""
