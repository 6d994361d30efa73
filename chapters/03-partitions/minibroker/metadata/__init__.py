"""The metadata of a cluster: its records, the image that they add up to, and the authority that writes them."""
