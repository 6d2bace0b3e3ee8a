"""Clients that differ: what is refused before anything is loaded, and when methods break their word."""

from collections.abc import Iterable

import pytest
import torch
from pydantic import BaseModel

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.config import expand
from fedcore.config.identity import group_hash
from fedcore.engine.clients.executor import is_mixed
from fedcore.engine.plan import plan
from fedcore.engine.server import Server, without_samples
from fedcore.methods import About, registry
from fedcore.methods.base import FedLensMethodError, State
from fedcore.methods.baselines.prompts.coop import CoOp, CoOpConfig
from fedcore.methods.baselines.prompts.fedotp import FedOTP, FedOTPConfig
from fedcore.methods.baselines.prompts.fedpgp import FedPGP, FedPGPConfig
from fedcore.methods.baselines.prompts.promptfl import PromptFL, PromptFLConfig
from fedcore.methods.baselines.zero_shot import ZeroShot, ZeroShotConfig
from fedcore.methods.sdfed.method import SDFed, SDFedConfig
from tests.support.method_cases import BUILT_IN
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import drawn_backbone, run_rounds, tiny_cohorts

RN = 'backbone = { name = "mini-rn" }'
MIXED = f"[[cohorts]]\nclients = 2\n[[cohorts]]\nclients = 3\n{RN}\n"
ACROSS = [name for name in BUILT_IN if registry.get(name).backbones != "one"]


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


def of_all(names: Iterable[str]) -> str:
    return "\n[[methods]]\n".join(f'name = "{name}"' for name in names)


def test_some_methods_take_two_backbones_and_all_take_several_budgets():
    runs = plan(experiment(method=of_all(ACROSS))).runs
    assert [run.method.name for run in runs] == ACROSS
    assert all([c.clients for c in run.cohorts] == [2, 3] for run in runs)
    assert config.backbone_names(runs[0]) == "mini-vit + mini-rn"
    budgets = "[[cohorts]]\nclients = 2\nbatch_size = 8\n[[cohorts]]\nclients = 3\nmax_steps = 1\n"
    runs = plan(experiment(budgets, of_all(BUILT_IN))).runs
    assert len(runs) == len(BUILT_IN) and all(run.cohorts[0].batch_size == 8 for run in runs)


def test_methods_that_belong_to_a_backbone_say_who_can():
    """d is equal in the two miniatures; what is learned still belongs to one of them."""
    message, field = refused(method='name = "fedot"')
    able = [registry.get(n).about.title for n in registry.load_all() if registry.get(n).backbones != "one"]
    assert message == (
        "the parameters of FedOT belong to one backbone, so its clients cannot have mini-vit and mini-rn; "
        "give all cohorts one backbone, or use a method that does not depend on it: " + ", ".join(able)
    )
    assert {"sdfed", "promptfl", "zero-shot"} <= {*ACROSS}
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
        (MIXED.replace("mini-rn", "RN50"), "sdfed", "cohorts.1.backbone.pretrained", "RN50 needs weights"),
        (
            f"[[cohorts]]\nclients = 5\n{clip('coca_ViT-B-32', 'laion2b_s13b_b90k')}\n",
            "pfedmma",
            "cohorts.0.backbone.name",
            "has no ViT tokens to encode",
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


def test_a_method_must_have_the_field_that_a_cohort_sets(monkeypatch):
    class Bare(BiasMethod):
        name = "bare"
        about = About("Bare")

        class Config(BaseModel):
            lr: float = 0.1

    monkeypatch.setitem(registry._METHODS, "bare", Bare)
    said = refused("[[cohorts]]\nclients = 5\nlocal_epochs = 2\n", 'name = "bare"')
    assert said == ("Bare has no local_epochs; leave it out of the cohort", "cohorts.0.local_epochs")


def test_a_budget_is_nothing_to_a_method_that_does_not_train():
    budget = "[[cohorts]]\nclients = 5\nbatch_size = 2\nlocal_epochs = 3\nmax_steps = 4\n"
    (run,) = plan(experiment(budget, 'name = "zero-shot"')).runs
    assert not {"batch_size", "local_epochs", "max_steps"} & set(run.method.config)


def test_cohorts_are_written_and_read_back_and_part_runs_into_groups():
    mixed, plain = experiment(MIXED.replace("clients = 2", "clients = 2\nmax_steps = 50")), experiment("")
    assert config.loads(config.dumps(mixed)) == mixed
    assert "cohorts" not in config.dumps(plain)
    (run,), (alone,) = expand(mixed), expand(plain)
    assert config.RunConfig.model_validate_json(run.model_dump_json()) == run
    assert run.cohorts == mixed.cohorts and alone.cohorts == ()
    assert group_hash(run) != group_hash(alone)
    assert group_hash(run.model_copy(update={"cohorts": ()})) == group_hash(alone)


SHORT = PromptFLConfig(context_length=2)


@pytest.fixture(scope="module")
def backbones():
    """Two CLIPs of equal sizes and a third with wider embeddings."""
    return drawn_backbone(seed=0), drawn_backbone(seed=5), drawn_backbone(seed=6, embed_dim=24)


class AnyBias(BiasMethod):
    """A linear head on embeddings, which belongs to one CLIP whatever it declares."""

    backbones = "any"


class FromText(PromptFL):
    """Takes over that its clients may differ, but starts from its own CLIP's words."""

    def init(self, generator):
        return State(shared={"context": self.suffix.embeddings[0, :2].clone()})


class Reading(PromptFL):
    """Measures the images of all clients at once."""

    def diagnostics(self, before, trained, uploads, data):
        return {"mean_norm": data.x.norm(dim=-1).mean(-1)}


class Counting(PromptFL):
    """Labels and counts are the same through every backbone."""

    def diagnostics(self, before, trained, uploads, data):
        return {
            "samples": data.class_counts.sum(-1),
            "first_label": data.labels[:, 0],
            "held": data.mask.sum(-1),
        }


def cohorts(cls, config, backbones):
    return tiny_cohorts(cls, config, [(b, 2, {}) for b in backbones], samples=(9, 5, 7, 6))


def loop_of(cls, config, backbones) -> Server:
    parts = cohorts(cls, config, backbones)
    return Server(parts[0].method, parts[0].federation, 1, cohorts=parts)


def test_a_state_of_one_backbone_s_size_is_refused(backbones):
    message = (
        r"AnyBias declares backbones = 'any', but its shared 'weight' starts as \(3, 16\) of norm 0 with "
        r"tiny-vit and \(3, 24\) of norm 0 with tiny-vit; declare backbones = 'one'"
    )
    with pytest.raises(FedLensMethodError, match=message):
        loop_of(AnyBias, BiasConfig(), [backbones[0], backbones[2]])


def test_a_state_of_one_backbone_s_values_is_refused(backbones):
    """Sizes are equal: nothing else would tell."""
    with pytest.raises(FedLensMethodError, match=r"FromText declares .*'equal token widths'.*'context'"):
        loop_of(FromText, SHORT, backbones[:2])
    one = cohorts(FromText, SHORT, [backbones[0], backbones[0]])
    assert not is_mixed(one)


def test_a_part_that_one_backbone_alone_makes_is_refused(backbones):
    class Odd(PromptFL):
        def init(self, generator):
            state = super().init(generator)
            more = {"more": torch.ones(1)} if self.problem.backbone is backbones[2] else {}
            return State(shared=state.shared, server=more)

    message = r"server 'more' starts as nothing with tiny-vit and \(1,\) of norm 1"
    with pytest.raises(FedLensMethodError, match=message):
        loop_of(Odd, SHORT, [backbones[0], backbones[2]])


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (PromptFL, SHORT),
        (CoOp, CoOpConfig(context_length=2)),
        (SDFed, SDFedConfig(global_length=3, local_length="2,5,3,4")),
        (FedPGP, FedPGPConfig(context_length=2, rank=2)),
        (FedOTP, FedOTPConfig(context_length=2)),
        (ZeroShot, ZeroShotConfig()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_built_in_methods_keep_their_word(backbones, cls, config):
    assert is_mixed(cohorts(cls, config, [backbones[0], backbones[2]]))


def test_diagnostics_that_read_samples_are_refused(backbones):
    parts = cohorts(Reading, SHORT, [backbones[0], backbones[2]])
    with pytest.raises(FedLensMethodError, match=r"diagnostics of Reading read samples.*Step\.terms"):
        run_rounds(parts[0].method, parts[0].federation, 1, cohorts=parts)
    alike = cohorts(Reading, SHORT, [backbones[0], backbones[0]])
    last = run_rounds(alike[0].method, alike[0].federation, 1, cohorts=alike).finished[-1]
    assert len([d for d in last.diagnostics if d.name == "mean_norm"]) == 4


def test_the_samples_are_not_there_by_another_way_either(backbones):
    federation = cohorts(PromptFL, SHORT, backbones[:1])[0].federation
    data = without_samples(federation.local_data(torch.arange(4)), PromptFL)
    with pytest.raises(IndexError):
        data.pool.x(data.rows.index)


def test_labels_and_counts_can_be_read(backbones):
    parts = cohorts(Counting, SHORT, [backbones[0], backbones[2]])
    last = run_rounds(parts[0].method, parts[0].federation, 1, cohorts=parts).finished[-1]
    found = {n: [d.value for d in last.diagnostics if d.name == n] for n in ("samples", "held")}
    assert found == {"samples": [9, 5, 7, 6], "held": [9, 5, 7, 6]}
    labels = [d.value for d in last.diagnostics if d.name == "first_label"]
    train = parts[0].federation.train
    assert labels == parts[0].federation.pool.y(train.index[:, 0]).tolist()
