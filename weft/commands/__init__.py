"""The commands of ``weft`` on the command line, one module a group."""
