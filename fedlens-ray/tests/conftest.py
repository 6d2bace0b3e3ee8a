"""Ray reads its settings once, when it is first imported, so they are set before any test imports it."""

import os

from fedlens_ray.connection import SETTINGS

os.environ.update(SETTINGS)
