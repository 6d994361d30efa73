"""The tables of the APIs that the quorum brings, one module for each. Importing a module declares its API."""
