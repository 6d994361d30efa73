"""Topics as directories of logs, and the broker of one node that serves them."""
