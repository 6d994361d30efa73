"""The metadata of a cluster: records, the image that they fold into, and the authority that writes them."""
