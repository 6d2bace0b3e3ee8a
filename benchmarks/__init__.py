"""What FedLens costs on this machine: ``python -m benchmarks.rounds``, ``scale``, ``encode``, ``start``, ``pages``, ``live``."""
