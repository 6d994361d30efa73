"""The driver of the quorum: it sends votes and the metadata log over the network, and drives the controller's clock."""
