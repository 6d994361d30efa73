"""The tables of the transaction APIs, one module for each API. Importing a module declares its API."""
