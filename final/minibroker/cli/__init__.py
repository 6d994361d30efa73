"""The command line: the program `minibroker`.

A command only calls other packages. It has a module here for its options, and often a second one that does the work.
Both are imported only when the command runs, so that ``minibroker --help`` stays quick.
"""
