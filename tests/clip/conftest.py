import json

import pytest

from fedcore.base.lazy import open_clip
from fedcore.clip import specs
from tests.support.clip import SMALL


@pytest.fixture
def models(monkeypatch, tmp_path):
    """Names of open_clip models of our own: small-clip, its QuickGELU twin, and a wider one."""
    wide = SMALL | {"vision_cfg": SMALL["vision_cfg"] | {"width": 24}}
    configs = {"small-clip": SMALL, "small-clip-quickgelu": SMALL | {"quick_gelu": True}, "wide-clip": wide}
    files = {name: tmp_path / f"{name}.json" for name in configs}
    for name, file in files.items():
        file.write_text(json.dumps(configs[name]))
        open_clip().add_model_config(file)
    monkeypatch.setattr("fedcore.clip.specs.config_files", lambda: files)
    specs._clip_spec.cache_clear()
    yield
    specs._clip_spec.cache_clear()
