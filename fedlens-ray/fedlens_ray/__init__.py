"""Runs on the nodes of a Ray cluster, where nothing opens the database (``door`` is what FedLens finds)."""
