"""The tables of the quorum's APIs, one module for each API. Importing a module declares its API."""
