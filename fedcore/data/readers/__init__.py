"""Readers of the forms in which data sets are stored on disk."""
