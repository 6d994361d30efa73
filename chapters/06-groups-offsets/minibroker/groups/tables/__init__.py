"""The tables of the group APIs, one module for each API. Importing a module declares its API."""
