"""The tables of the APIs that the controller brings, one module for each. Importing a module declares its API."""
