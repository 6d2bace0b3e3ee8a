"""Measurements of FedLens on this machine, one module each, such as ``python -m tools.benchmarks.rounds``."""
