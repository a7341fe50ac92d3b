"""Verbs of the command line, by entry points."""
