"""One module for each API: its request, its response, and the structs inside."""
