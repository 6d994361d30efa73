"""The fast server: frames received into shared buffers, answers that the kernel sends from files."""
