"""The tables of the controller's APIs, one module for each API. Importing a module declares its API."""
