"""The tables of the APIs that replication brings, one module for each. Importing a module declares its API."""
