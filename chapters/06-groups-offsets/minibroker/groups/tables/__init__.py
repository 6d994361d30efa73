"""The tables of the APIs that groups bring, one module for each. Importing a module declares its API."""
