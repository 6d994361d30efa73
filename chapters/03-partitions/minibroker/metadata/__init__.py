"""What the cluster knows of itself: records, the image they fold into, and who decides."""
