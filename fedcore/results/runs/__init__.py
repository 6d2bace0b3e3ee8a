"""Runs on this machine: their progress, their files, and what planned ones will take."""
