"""Jobs in the background: the queue's supervisor, the processes that it starts, and what they do."""

from fedcore.jobs.launcher import force_stop
from fedcore.jobs.supervisor import ensure_worker

__all__ = ["ensure_worker", "force_stop"]
