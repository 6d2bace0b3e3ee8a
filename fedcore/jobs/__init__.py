"""Work in the background: the queue's supervisor, the processes it starts, and what they do."""

from fedcore.jobs.supervisor import ensure_worker, force_stop

__all__ = ["ensure_worker", "force_stop"]
