"""The command line: the program `minibroker`.

The commands only call the rooms below; each is a module of this room and is imported when it is asked for, so that
``minibroker --help`` stays quick.
"""
