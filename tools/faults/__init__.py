"""The fault campaign: breaks what FedLens stands on, at random but seeded places, and judges what it does.

``make faults`` runs every family (docs/reliability.md). There are three kinds of defects: a silent difference
is a number that differs from the undisturbed one without any message; a wrong state is, for example, a row
that says "running" while no process works for it; a raw error is any message but a sentence of FedLens.
"""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "FEDLENS_THREADS"):
    os.environ[_name] = "1"  # no thread may live when a process is forked
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # pyarrow's allocator
