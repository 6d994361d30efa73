"""The driver of the quorum: it sends votes and the metadata log over the network, and runs the controller's timers."""
