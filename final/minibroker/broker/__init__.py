"""A node of a cluster, assembled from the packages of all chapters."""
