"""Readers of the layouts in which data sets lie on disk."""
