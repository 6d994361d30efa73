"""The driver of replication: it sends the requests of replicas over the wire and calls their `tick`."""
