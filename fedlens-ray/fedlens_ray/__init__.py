"""Runs on the nodes of a Ray cluster: the connection, the nodes' reports, and training on a node.

Ray is optional and imported on first use. Nothing in this room can open the database: a node receives a run's
config and sends back the engine's events and checkpoints, which the supervisor records.
"""
