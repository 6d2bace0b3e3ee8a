from dataclasses import replace

import pytest
import torch

from fedcore.clip.specs import backbone_spec
from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.methods import registry
from fedcore.methods.base import RunContext, State
from fedcore.methods.baselines.prompts.promptfl import PromptFL, PromptFLConfig
from fedcore.papers.experiments import preset
from tests.support.against import assert_predictions, build, counts, naive_clip, train_both
from tests.support.tiny import run_rounds

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_agrees_with_the_naive_implementation(federation, weighting):
    method, clip = build("promptfl", federation, **SETTINGS, weighting=weighting), naive_clip(federation)

    def loss(params, x, y):
        return clip.loss(clip.texts(params["context"]), x, y)

    loop, (naive, *_) = train_both(method, federation, loss, weighting)
    assert_predictions(loop, clip.scores(clip.texts(naive["context"]), federation.pool.values))


@pytest.mark.parametrize("suffix", ["name", "sentence"])
def test_contexts_of_each_class_agree_with_the_naive_implementation(federation, suffix):
    method = build("promptfl", federation, **SETTINGS, class_specific=True, suffix=suffix)
    first = method.init(federation.problem.generator).shared["context"]
    assert first.shape == (3, 3, 16)
    pattern = {"name": "{}", "sentence": "a photo of a {}"}[suffix]
    clip = naive_clip(federation)
    clip = replace(clip, classes=[pattern.format(name) for name in clip.classes])

    def loss(params, x, y):
        return clip.loss(clip.texts(params["context"]), x, y)

    loop, (naive, *_) = train_both(method, federation, loss, "samples")
    assert (naive["context"] - first).abs().flatten(1).amax(1).min() > 1e-4  # every class has learned
    assert loop.finished[1].scalars_up == 3 * 3 * 3 * 16


def test_feddeaps_promptfl_is_feddeap_without_its_parts(federation):
    """The paper's Table 3 calls it the baseline; its values are those of PromptFL in Tables 1 and 2."""
    common = {"lr": 0.05, "batch_size": 4, "weight_decay": 1e-5, "weighting": "uniform"}
    ours = build("promptfl", federation, **common, context_length=3, class_specific=True, suffix="sentence")
    off = {"personal_prompt": False, "semantic_alignment": False, "domain_alignment": False}
    theirs = build("feddeap", federation, **common, prompt_length=3, **off)
    first = theirs.init(federation.problem.generator).shared["p_s"]
    ours.init = lambda generator: State(shared={"context": first})
    one, other = (run_rounds(method, federation, 2) for method in (ours, theirs))
    torch.testing.assert_close(one.state.shared["context"], other.state.shared["p_s"], atol=1e-12, rtol=0)
    assert counts(one.finished[-1]) == counts(other.finished[-1])
    assert one.finished[-1].bytes_up == other.finished[-1].bytes_up


def test_the_papers_rate_on_the_miniature_clip_is_warned_of_with_the_remedy():
    def warnings(*methods: dict[str, object]) -> list[str]:
        found = plan(parse({"data": {"name": "shapes"}, "methods": list(methods)})).warnings
        return [line for line in found if "learning rate" in line]

    slow = [
        {"name": name}
        for name in ("promptfl", "coop", "cocoop", "fedpgp", "fedotp", "fedmaple", "feddeap", "fedot")
    ]
    named = warnings(*slow, {"name": "sdfed"})
    assert len(named) == len(slow) and all("Set lr = 0.01" in line for line in named)
    assert named[0].startswith("PromptFL: the paper's learning rate 0.001")
    assert (
        warnings(
            {"name": "promptfl", "config": {"lr": 0.01}},
            {"name": "promptfl", "label": "2", "config": {"lr": 0.002}},
        )
        == []
    )
    assert plan(preset("demo")).warnings == ()
    config, context = PromptFLConfig(), RunContext(backbone_spec("ViT-B-32"), ("a",), 2, ("d",), "{}")
    assert PromptFL.plan_warnings(config, context) == []


@pytest.mark.parametrize(
    ("name", "said"), [("promptfl", []), ("fedmgp", ["a hundred times"]), ("proda", ["twelve times"])]
)
def test_a_plan_says_that_a_method_takes_many_times_as_long(name, said):
    context = RunContext(backbone_spec("ViT-B-32"), ("a",), 2, ("d",), "{}")
    warnings = registry.get(name).plan_warnings(registry.build_config(name, {}), context)
    assert len(warnings) == len(said) and all(part in w for part, w in zip(said, warnings, strict=True))
