import subprocess
import sys

import pytest

from fedcore import config
from fedcore.engine.plan import plan
from fedcore.errors import FedLensError


def _experiment(extra: str = "", method: str = 'name = "fedot"', data: str = 'name = "rotated-digits"'):
    return config.loads(f'name = "t"\nrounds = 1\n{extra}\n[data]\n{data}\n[[methods]]\n{method}\n')


def test_a_plan_writes_every_hyper_parameter_out_and_shows_who_gets_what():
    found = plan(_experiment())
    (run,) = found.runs
    assert run.method.config["blocks"] == 1 and run.method.config["momentum"] == 0.9
    assert run.method.label == "FedOT"
    assert len(found.clients) == 6 and found.counts.shape == (6, 10)
    assert found.counts.sum() == pytest.approx(0.6 * 1797, abs=60)


def test_leave_one_domain_out_plans_a_run_per_domain():
    found = plan(_experiment('held_out = ["each"]'))
    assert [r.held_out for r in found.runs] == list(found.domains)
    assert len(found.clients) == len(found.domains) - 1


@pytest.mark.parametrize(
    ("kwargs", "field", "message"),
    [
        ({"method": 'name = "fedott"'}, "methods.0.name", "did you mean 'fedot'"),
        ({"method": 'name = "fedot"\nconfig = { blocks = 7 }'}, "methods.0.config.blocks", "do not divide"),
        (
            {"method": 'name = "fedot"\nconfig = { lr = -1 }'},
            "methods.0.config.lr",
            "greater than or equal to 0",
        ),
        ({"method": 'name = "fedot"\nconfig = { blok = 1 }'}, "methods.0.config.blok", "no such field"),
        ({"data": 'name = "rotated-digit"'}, "data.name", "rotated-digits"),
        ({"extra": 'held_out = ["mars"]'}, "held_out", "no domain 'mars'"),
    ],
)
def test_what_would_stop_a_run_is_refused_with_its_field(kwargs, field, message):
    with pytest.raises(FedLensError) as caught:
        plan(_experiment(**kwargs))
    assert caught.value.field == field and message in str(caught.value)


def _with(section: str):
    return config.loads(f'name = "t"\n{section}\n[[methods]]\nname = "fedot"\n')


@pytest.mark.parametrize(
    ("section", "field", "message"),
    [
        ('[backbone]\nname = "ViT-B-32"', "backbone.pretrained", "give an open_clip tag"),
        (
            '[backbone]\nname = "ViT-B-32"\npretrained = "/none/w.pt"',
            "backbone.pretrained",
            "no weights file",
        ),
        ('[backbone]\nname = "ViT-B-33"', "backbone.name", "did you mean"),
        ('[partition]\nkind = "iid"\nclients = 5000', "partition.clients", "samples"),
    ],
)
def test_impossible_backbones_and_partitions_are_refused(section, field, message):
    with pytest.raises(FedLensError) as caught:
        plan(_with(section))
    assert caught.value.field == field and message in str(caught.value)


def test_planning_never_imports_torch():
    code = (
        "import sys; from fedcore import config; from fedcore.engine.plan import plan; "
        "plan(config.load('experiments/demo.toml')); assert 'torch._C' not in sys.modules; print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr[-2000:]
