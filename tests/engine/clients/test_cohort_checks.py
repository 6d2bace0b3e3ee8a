"""What stops a run whose clients differ, before anything is loaded."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from fedcore import config
from fedcore.config import expand
from fedcore.config.grouping import group_hash
from fedcore.engine.plan import plan
from fedcore.errors import FedLensError
from fedcore.methods import About, registry
from tests.support.own_methods import BiasMethod

RN = 'backbone = { name = "mini-rn" }'
MIXED = f"[[cohorts]]\nclients = 2\n[[cohorts]]\nclients = 3\n{RN}\n"
BUILT_IN = [n for n, cls in registry.load_all().items() if cls.__module__.startswith("fedcore.methods.")]
ACROSS = ["coop", "fedotp", "fedpgp", "promptfl", "sdfed", "zero-shot"]


def experiment(cohorts: str = MIXED, method: str = 'name = "sdfed"', backbone: str = 'name = "mini-vit"'):
    """Five clients, one for each domain."""
    return config.loads(
        'name = "t"\nrounds = 1\n[data]\nname = "shapes"\n'
        'domains = ["photo", "sketch", "cartoon+30", "painting-45", "night"]\n'
        f"[backbone]\n{backbone}\n{cohorts}\n[[methods]]\n{method}\n"
    )


def refused(*args: str, **kwargs: str) -> tuple[str, str | None]:
    with pytest.raises(FedLensError) as caught:
        plan(experiment(*args, **kwargs))
    return str(caught.value), caught.value.field


@pytest.mark.parametrize("name", ACROSS)
def test_some_methods_take_two_backbones(name):
    (run,) = plan(experiment(method=f'name = "{name}"')).runs
    assert [c.clients for c in run.cohorts] == [2, 3]
    assert config.backbone_names(run) == "mini-vit + mini-rn"


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_takes_cohorts_of_one_backbone(name):
    budgets = "[[cohorts]]\nclients = 2\nbatch_size = 8\n[[cohorts]]\nclients = 3\nmax_steps = 1\n"
    (run,) = plan(experiment(budgets, f'name = "{name}"')).runs
    assert run.cohorts[0].batch_size == 8


@pytest.mark.parametrize("name", sorted({*BUILT_IN} - {*ACROSS}))
def test_methods_that_belong_to_a_backbone_say_who_can(name):
    """d is equal in the two miniatures; what is learned still belongs to one of them."""
    message, field = refused(method=f'name = "{name}"')
    able = [registry.get(n).about.title for n in registry.load_all() if registry.get(n).backbones != "one"]
    assert message == (
        f"the parameters of {registry.get(name).about.title} belong to one backbone, so its clients "
        "cannot have mini-vit and mini-rn; give all cohorts one backbone, or use a method that "
        "does not depend on it: " + ", ".join(able)
    )
    assert {registry.get(n).about.title for n in ACROSS} <= set(able)
    assert field == "cohorts.1.backbone.name"


def test_weights_tell_backbones_of_one_name_apart(tmp_path):
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).touch()
    one, other = (f'{{ name = "ViT-B-32", pretrained = "{tmp_path / n}" }}' for n in ("a.pt", "b.pt"))
    both = f"[[cohorts]]\nclients = 2\nbackbone = {one}\n[[cohorts]]\nclients = 3\nbackbone = {other}\n"
    message, _ = refused(both, 'name = "fedot"')
    assert f"cannot have ViT-B-32 ({tmp_path / 'a.pt'}) and ViT-B-32 ({tmp_path / 'b.pt'})" in message
    assert plan(experiment(both, 'name = "promptfl"')).runs, "the experiment's own backbone is not used"


def test_zero_shot_takes_any_backbones():
    other = 'name = "RN50x4", pretrained = "openai"'
    assert plan(experiment(MIXED.replace('name = "mini-rn"', other), 'name = "zero-shot"')).runs


def clip(name: str, tag: str = "openai") -> str:
    return f'backbone = {{ name = "{name}", pretrained = "{tag}" }}'


@pytest.mark.parametrize(
    ("cohorts", "method", "field", "message"),
    [
        (
            f"[[cohorts]]\nclients = 2\n{clip('ViT-B-16')}\n[[cohorts]]\nclients = 3\n{clip('RN50x4')}\n",
            "sdfed",
            "cohorts.1.backbone.name",
            "SDFed shares prompts, vectors of the token width: 512 in ViT-B-16, 640 in RN50x4",
        ),
        (
            f"[[cohorts]]\nclients = 2\n[[cohorts]]\nclients = 3\n{clip('RN50')}\n",
            "coop",
            "cohorts.1.backbone.name",
            "192 in mini-vit, 512 in RN50; choose backbones of one token width, e.g. ViT-B-16 and RN50",
        ),
        (
            "[[cohorts]]\nclients = 2\n[[cohorts]]\nclients = 2\n",
            "sdfed",
            "cohorts",
            "the cohorts hold 4 clients, the partition makes 5; make the cohorts' clients add up",
        ),
        (f"{MIXED}[[cohorts]]\nclients = 1\n", "sdfed", "cohorts", "hold 6 clients, the partition makes 5"),
        (
            MIXED.replace("mini-rn", "mini-rm"),
            "sdfed",
            "cohorts.1.backbone.name",
            "unknown backbone 'mini-rm'; did you mean 'mini-rn",
        ),
        (
            MIXED.replace("mini-rn", "RN50"),
            "sdfed",
            "cohorts.1.backbone.pretrained",
            "RN50 needs weights",
        ),
        (
            f"[[cohorts]]\nclients = 5\n{clip('coca_ViT-B-32', 'laion2b_s13b_b90k')}\n",
            "promptfl",
            "cohorts.0.backbone.name",
            "takes no learned prompts",
        ),
        (
            "[[cohorts]]\nclients = 4\n[[cohorts]]\nclients = 1\nbatch_size = 1\n",
            "fedclip",
            "cohorts.1",
            "batch_size 1 leaves the contrastive loss without negatives",
        ),
    ],
)
def test_cohorts_that_cannot_train_are_refused(cohorts, method, field, message):
    said, where = refused(cohorts, f'name = "{method}"')
    assert message in said
    assert where == field


def test_a_method_s_own_field_keeps_its_place():
    lengths = 'name = "sdfed"\nconfig = { local_length = "4,8" }'
    assert refused(method=lengths) == (
        "2 lengths for 5 clients; give one per client, or fixed:4",
        "methods.0.config.local_length",
    )


@pytest.mark.parametrize("field", ["batch_size", "local_epochs"])
def test_a_method_must_have_the_field_that_a_cohort_sets(field, monkeypatch):
    class Bare(BiasMethod):
        name = "bare"
        about = About("Bare")

        class Config(BaseModel):
            lr: float = 0.1

    monkeypatch.setitem(registry._METHODS, "bare", Bare)
    said = refused(f"[[cohorts]]\nclients = 5\n{field} = 2\n", 'name = "bare"')
    assert said == (f"Bare has no {field}; leave it out of the cohort", f"cohorts.0.{field}")


def test_a_budget_is_nothing_to_a_method_that_does_not_train():
    budget = "[[cohorts]]\nclients = 5\nbatch_size = 2\nlocal_epochs = 3\nmax_steps = 4\n"
    (run,) = plan(experiment(budget, 'name = "zero-shot"')).runs
    assert not {"batch_size", "local_epochs", "max_steps"} & set(run.method.config)


@pytest.mark.parametrize(
    ("cohort", "field", "message"),
    [
        ("clients = 0", "cohorts.0.clients", "greater than or equal to 1"),
        ("batch_size = 4", "cohorts.0.clients", "is missing"),
        ("clients = 5\nbatch_size = 0", "cohorts.0.batch_size", "greater than or equal to 1"),
        ("clients = 5\nlocal_epochs = 0", "cohorts.0.local_epochs", "greater than or equal to 1"),
        ("clients = 5\nmax_steps = 0", "cohorts.0.max_steps", "greater than or equal to 1"),
        ("clients = 5\nlr = 0.1", "cohorts.0.lr", "no such field"),
        ('clients = 5\nbackbone = "RN50"', "cohorts.0.backbone", "table of names"),
    ],
)
def test_a_wrong_field_of_a_cohort_is_named(cohort, field, message):
    with pytest.raises(FedLensError) as caught:
        experiment(f"[[cohorts]]\n{cohort}\n")
    assert caught.value.field == field and message in str(caught.value)


def test_cohorts_are_written_and_read_back_and_part_runs_into_groups():
    mixed, plain = experiment(MIXED.replace("clients = 2", "clients = 2\nmax_steps = 50")), experiment("")
    assert config.loads(config.dumps(mixed)) == mixed
    assert "cohorts" not in config.dumps(plain)
    (run,), (alone,) = expand(mixed), expand(plain)
    assert config.RunConfig.model_validate_json(run.model_dump_json()) == run
    assert run.cohorts == mixed.cohorts and alone.cohorts == ()
    assert group_hash(run) != group_hash(alone)
    assert group_hash(run.model_copy(update={"cohorts": ()})) == group_hash(alone)
