"""Ray reads its settings once in a process, when it is first imported: they are set before any test is."""

import os

from fedcore.cluster.connection import SETTINGS

os.environ.update(SETTINGS)
