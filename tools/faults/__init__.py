"""The fault campaign: breaks what FedLens stands on, at random but seeded places, and judges what it does.

``make faults`` runs every family (docs/reliability.md). A defect is one of three: a silent difference, which
is another number than without the fault and nothing said; a wrong state, such as a row that says "running"
while no process works for it; and a raw error, which is anything but FedLens' own sentence.
"""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "FEDLENS_THREADS"):
    os.environ[_name] = "1"  # no thread may live when a process is forked
