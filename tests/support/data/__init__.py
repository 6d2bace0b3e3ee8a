"""Data sets, archives and files of every layout, written small for tests, and damage done to files."""
