"""Measurements of FedLens on this machine, one module each: ``python -m benchmarks.rounds`` and so on."""
