"""The driver of the coordinators: it loads their state, appends their records, and answers their clients."""
