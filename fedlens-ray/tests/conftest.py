"""The fixtures of FedLens's own tests, and Ray's settings, which it reads once, at its first import."""

import os

from fedlens_ray.connection import SETTINGS

from tests.browser.conftest import *  # noqa: F403
from tests.conftest import *  # noqa: F403
from tests.pages.conftest import *  # noqa: F403

os.environ.update(SETTINGS)
