"""A node of a cluster: everything that the chapters have built, assembled."""
