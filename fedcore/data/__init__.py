"""Data sets, their splits, and their partitions into clients; nothing in this room imports torch."""
