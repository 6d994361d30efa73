"""The driver of the quorum: it carries votes and the metadata log over the wire, and brings the controller the time."""
