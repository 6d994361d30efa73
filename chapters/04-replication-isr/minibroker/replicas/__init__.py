"""The driver of replication: it sends the requests of replicas over the wire and tells the replicas the time."""
