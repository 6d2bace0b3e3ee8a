"""Cross-class: clients of several data sets, each of which trains and predicts among its own classes only."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION, GLOBAL, TEST, VALIDATION
from fedcore.config import Experiment, expand
from fedcore.data.images import ImageSet
from fedcore.data.training_classes import CrossClass, blocks, joined
from fedcore.engine.clients.executor import Chunk, Cohort, Worker
from fedcore.engine.federations import cohorts_of_one, entities, federation_of_all, federation_of_client
from fedcore.engine.inspect import restore
from fedcore.engine.plan import plan
from fedcore.engine.prepare import bound_to_one_label_space, prepare_inputs, resolve
from fedcore.engine.server import Server
from fedcore.engine.train import train
from fedcore.methods import registry
from fedcore.methods.federation import Federation
from tests.methods.baselines.prompts.test_fedtpg import context_of
from tests.support import tiny
from tests.support.against import engine_batches, federation_for, naive_clip, samples
from tests.support.method_cases import BUILT_IN, SMALL
from tests.support.oracles import fedavg
from tests.support.own_methods import BiasConfig, BiasMethod

TREES = ("yew", "ash", "elm", "oak", "fir", "box", "bay", "may", "tea")
THINGS = ("oak", "lamp", "cup", "jug")
"""A name that trees have too: it is another class here, with images of its own."""
EACH = 10


def image_set(name: str, classes: tuple[str, ...], template: str) -> ImageSet:
    labels = np.tile(np.arange(len(classes)), EACH)
    domain = np.arange(len(labels)) % 2
    keys = tuple(f"{i}" for i in range(len(labels)))
    return ImageSet(name, classes, ("a", "b"), template, labels, domain, keys, name, lambda i: (name, i))


def both() -> ImageSet:
    trees = image_set("trees", TREES, "a photo of a {}.")
    return joined([trees, image_set("things", THINGS, "the thing {}.")])


def experiment(per_client: int = 2, **data: object) -> Experiment:
    return Experiment(
        data={"name": "shapes", "training_classes": "own", "shots": 3, **data},
        further_data=[{"name": "rotated-digits"}],
        partition={"kind": "blocks", "classes_per_client": per_client},
        methods=[{"name": "zero-shot"}],
    )


def dealt(seed: int = 1, **data: object) -> tuple[ImageSet, CrossClass]:
    (run,) = expand(experiment(**data).model_copy(update={"seeds": (seed,)}))
    images = both()
    found = prepare_inputs(run, images).cross_class
    assert found is not None
    return images, found


def federation(backbone=None) -> tuple[Federation, ImageSet, CrossClass]:
    images, protocol = dealt()
    backbone = backbone or tiny.drawn_backbone()
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(len(images), backbone.spec.embed_dim, generator=generator, dtype=torch.float64)
    return federation_of_all(images, protocol, values, backbone, seed=1), images, protocol


def cohorts(name: str, backbone=None, **config: object) -> tuple[Federation, tuple[Cohort, ...], CrossClass]:
    whole, images, protocol = federation(backbone)
    made = registry.build_config(name, config)
    return whole, cohorts_of_one(registry.get(name), made, whole, images, protocol), protocol


def loop_of(whole: Federation, of_clients: tuple[Cohort, ...], rounds: int = 2) -> Server:
    return tiny.run_rounds(of_clients[0].method, whole, rounds, cohorts=of_clients)


# The deal


@pytest.mark.parametrize(("classes", "per_client"), [(9, 2), (20, 20), (19, 20), (45, 20), (50, 20), (3, 20)])
def test_blocks_follow_the_order_and_only_the_last_has_another_size(classes, per_client):
    names = [str(i) for i in range(classes)]
    found = blocks(names, per_client)
    assert [name for block in found for name in block] == names
    assert len(found) == max(1, round(classes / per_client)) and all(found)
    assert all(len(block) == per_client for block in found[:-1])


def test_the_base_half_of_each_data_set_is_dealt_and_label_spaces_are_disjoint():
    images, protocol = dealt()
    assert protocol.assignment.clients == ("trees-1", "trees-2", "things")
    assert protocol.blocks == (("yew", "ash"), ("elm", "oak", "fir"), ("oak", "lamp")), "5 and 2 base classes"
    assert protocol.assignment.client_domain.tolist() == [0, 0, 1]
    assert [half.new for half in protocol.halves] == [TREES[5:], THINGS[2:]]
    held = protocol.assignment.counts > 0
    assert (held.sum(0) == 1).all(), "each base class has one client"
    assert protocol.assignment.counts[held].tolist() == [3] * 7, "shots of each class and client"
    assert images.read(len(TREES) * EACH + 4) == ("things", 4)


@pytest.mark.parametrize("scope", ["client", "federation"])
@pytest.mark.parametrize("scheme", ["60/20/20", "80/20"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_test_image_and_no_new_class_is_trained_on(scheme, seed, scope):
    images, protocol = dealt(seed, split=scheme, shots_scope=scope)
    trained = np.concatenate(protocol.assignment.train)
    tested = np.concatenate(
        [*protocol.assignment.test, *(r for h in protocol.halves for r in (h.base_test, h.new_test))]
    )
    assert len(set(trained)) == len(trained) and not set(trained) & set(tested)
    assert not set(np.concatenate(protocol.assignment.validation)) & set(tested)
    assert {images.classes[c].split(": ")[1] for c in images.labels[trained]} <= {
        n for b in protocol.blocks for n in b
    }
    local = np.concatenate(protocol.assignment.test)
    assert sorted(local) == sorted(r for h in protocol.halves for r in h.base_test), (
        "clients divide the base tests"
    )


# Training and evaluation, against a loop that knows each client's names only


def space_names(protocol: CrossClass) -> list[tuple[str, ...]]:
    """Names of each column: clients, then base and new classes of each data set."""
    return [
        *protocol.blocks,
        *(half.base for half in protocol.halves),
        *(half.new for half in protocol.halves),
    ]


@pytest.mark.parametrize("name", ["promptfl", "fedtpg"])
def test_agrees_with_a_loop_over_clients_that_encode_their_own_names(name):
    settings = {
        "context_length": 2,
        "lr": 0.05,
        "batch_size": 4,
        "schedule": "constant",
        "weighting": "uniform",
    }
    whole, of_clients, protocol = cohorts(name, **settings)
    first = of_clients[0].method.init(whole.problem.generator).shared

    def clip_of(names):
        return replace(naive_clip(whole), classes=names)

    def texts(values, names):
        context, clip = values[0], clip_of(names)
        if name == "fedtpg":
            context = context_of(dict(zip(first, values, strict=True)), clip.sentences("{}"))
        return clip.texts(context)

    block_of = {c: b for b, block in enumerate(protocol.blocks) for c in block_positions(protocol, b, block)}

    def loss(values, received, x, y):
        block = block_of[int(y[0])]
        positions = block_positions(protocol, block, protocol.blocks[block])
        mine = torch.tensor([positions.index(int(label)) for label in y])
        return clip_of(protocol.blocks[block]).loss(texts(values, protocol.blocks[block]), x, mine)

    config = of_clients[0].method.config

    def optimiser(values):
        return torch.optim.SGD(values, config.lr, config.momentum, weight_decay=config.weight_decay)

    rounds = 2
    batches = engine_batches(whole, of_clients[0].method, rounds)
    expected = fedavg.run(loss, list(first.values()), *samples(whole), batches, optimiser, [1.0] * 3)[0]
    loop = loop_of(whole, of_clients, rounds)
    for key, value in zip(first, expected, strict=True):
        torch.testing.assert_close(loop.state.shared[key], value, atol=1e-6, rtol=0)
    assert max((v - first[k]).abs().max() for k, v in zip(first, expected, strict=True)) > 1e-3

    found = {
        (c.test_set, c.split): (c.correct, c.total)
        for c in loop.finished[-1].cells
        if c.model == GLOBAL and c.stage == AFTER_AGGREGATION
    }
    rows = [
        *protocol.assignment.test,
        *(h.base_test for h in protocol.halves),
        *(h.new_test for h in protocol.halves),
    ]
    columns = list(enumerate(zip(space_names(protocol), rows, strict=True), start=1))
    columns = [(at, TEST, names, held) for at, (names, held) in columns]
    columns += [
        (at, VALIDATION, names, held)
        for at, (names, held) in enumerate(
            zip(protocol.blocks, protocol.assignment.validation, strict=True), start=1
        )
    ]
    images = both()
    assert found.keys() == {(at, split) for at, split, _, _ in columns}
    for at, split, names, held in columns:
        said = clip_of(names).scores(texts(expected, names), whole.pool.values[held]).argmax(1)
        right = sum(names[k] == spoken(images, r) for k, r in zip(said.tolist(), held, strict=True))
        assert found[at, split] == (right, len(held)), (at, split)
    clients = {c.test_set for c in loop.finished[-1].cells if c.stage == BEFORE_AGGREGATION}
    assert clients == {1, 2, 3}, "before aggregation each client is tested among its own classes"


def block_positions(protocol: CrossClass, client: int, block: tuple[str, ...]) -> list[int]:
    """Where a client's classes are among the base classes of all data sets."""
    data_set = ("trees", "things")[protocol.assignment.client_domain[client]]
    return [protocol.classes.index(f"{data_set}: {name}") for name in block]


def spoken(images: ImageSet, row: int) -> str:
    return images.classes[images.labels[row]].split(": ")[1]


def test_a_method_whose_prompt_depends_on_the_set_of_names_predicts_otherwise_under_a_mask():
    """FedTPG's scores of a client's classes among all base names are not those among its own."""
    whole, of_clients, protocol = cohorts("fedtpg", context_length=2)
    method = of_clients[1].method
    state = method.init(method.problem.generator)
    params = {n: v[None] for n, v in state.shared.items()}
    among_all = type(method)(method.config, whole.label_spaces[0].problem)
    x = whole.pool.values[:5][None]
    mine = method.logits(params, method.head(params, None), x)[0]
    masked = among_all.logits(params, among_all.head(params, None), x)[0]
    columns = [protocol.halves[0].base.index(name) for name in protocol.blocks[1]]
    assert (mine - masked[:, columns]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["fedtpg", "promptfl"])
def test_a_client_encodes_no_name_beyond_its_label_space(name):
    _, images, protocol = federation()
    cls, config = registry.get(name), registry.build_config(name, {"context_length": 2})
    for client in range(len(protocol.blocks)):
        watched, read = tiny.watched(tiny.drawn_backbone())
        held = federation_of_client(federation(watched)[0], images, protocol, client)
        method, one = cls(config, held.problem), torch.tensor([client])
        received = {n: v[None] for n, v in method.init(held.problem.generator).shared.items()}
        worker = Worker((Cohort(method, held, range(client, client + 1)),))
        worker.train(Chunk(0, one, 1, received, {}, {}, 0.1, True))
        named = {name for name in {*TREES, *THINGS} if any(name in text for text in read)}
        assert named == set(protocol.blocks[client]), client


def test_own_models_are_tested_on_own_classes_and_on_every_label_space_of_a_data_set():
    whole, of_clients, _ = cohorts("promptfolio", context_length=2, lr=0.05)
    cells = loop_of(whole, of_clients, 1).finished[-1].cells
    after = [c for c in cells if c.split == TEST and c.stage == AFTER_AGGREGATION]
    assert {(c.model, c.test_set) for c in after if c.model} == {
        (client, column) for client in (1, 2, 3) for column in (client, 4, 5, 6, 7)
    }
    assert [e.kind for e in entities(whole)] == ["global", *["client"] * 3, *["base"] * 2, *["new"] * 2]
    assert [e.domain for e in entities(whole)[4:]] == ["trees", "things"] * 2


def folders(root: Path) -> list[Path]:
    """Two data sets of the user's own, with four and three classes of a few pictures."""
    draw = np.random.default_rng(0)
    made = [root / "trees", root / "things"]
    for folder, names in zip(made, (TREES[:4], THINGS[:3]), strict=True):
        for name in names:
            (folder / name).mkdir(parents=True)
            for i in range(8):
                pixels = draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return made


def test_two_folders_are_planned_trained_and_resumed_with_the_same_numbers(tmp_path):
    trees, things = map(str, folders(tmp_path / "data"))
    experiment = Experiment(
        data={"name": "folder", "root": trees, "training_classes": "own"},
        further_data=[{"name": "folder", "root": things, "template": "the thing {}."}],
        partition={"kind": "blocks", "classes_per_client": 1},
        transfer=[{"name": "folder", "root": things}],
        methods=[{"name": "fedtpg", "config": {"context_length": 2}}],
        rounds=2,
    )
    made = plan(experiment)
    assert made.clients == ("folder trees-1", "folder trees-2", "folder things-1", "folder things-2")
    assert made.counts.shape == (4, 4) and (made.counts > 0).sum() == 4
    (run,) = made.runs
    places = {"artifacts": tmp_path / "artifacts", "folder": tmp_path / "run"}
    rounds = tiny.finished(train(run, **places))
    again = train(run, resume_from=rounds[1].checkpoint, environment={}, **places)
    (last,) = tiny.finished(again)
    assert last.cells == rounds[2].cells and last.train_loss == rounds[2].train_loss
    assert {c.test_set for c in last.cells if c.model == GLOBAL and c.split == TEST} == set(range(1, 10))
    with pytest.raises(FedLensError, match="not available for it"):
        list(restore(run, Path(rounds[2].checkpoint), tmp_path / "artifacts", "cpu", None))


def test_a_model_that_keeps_its_client_s_images_is_asked_with_the_labels_of_its_own_classes():
    """Tip-Adapter: its cache votes in every label space.

    Names are encoded in the prompt of their data set, and no name that is meant for pages is.
    """
    watched, read = tiny.watched(tiny.drawn_backbone())
    whole, of_clients, _ = cohorts("tip-adapter", watched)
    loop = loop_of(whole, of_clients, 1)
    found = {(c.model, c.test_set): c.correct for c in loop.finished[-1].cells if c.split == TEST}
    for column, space in enumerate(whole.label_spaces, start=4):
        method = type(of_clients[0].method)(of_clients[0].method.config, space.problem)
        rows = space.test.flat
        for client, cohort in enumerate(of_clients):
            one = torch.tensor([client])
            params = {n: v[one] for n, v in loop.state.local.items()}
            head = method.head(params, cohort.federation.local_data(one))
            right = method.logits(params, head, whole.pool.x(rows)[None]).argmax(-1)[0] == space.pool.y(rows)
            assert found[client + 1, column] == int(right.sum()), (client, column)
    prompts = {"a photo of a {}.": TREES, "the thing {}.": THINGS}
    framing = {"", "a"}  # which tell the tokens at a text's beginning and end
    assert set(read) - framing == {prompt.format(name) for prompt, names in prompts.items() for name in names}


# What cannot be done is refused


def refused(name: str) -> str:
    cls = registry.get(name)
    return bound_to_one_label_space(cls, registry.build_config(name, SMALL.get(name, {})))


def test_methods_with_parameters_for_each_class_are_refused_before_anything_is_loaded():
    bound = ("fedot", "fedalign", "feddeap", "taskres", "vpt", "clip-fc", "fedgh", "fedakt", "fedapt")
    assert all(map(refused, bound))
    assert not any(map(refused, ("zero-shot", "promptfl", "fedtpg", "kgcoop", "coop", "sdfed", "fedotp")))
    csc = registry.build_config("promptfl", {"class_specific": True})
    assert bound_to_one_label_space(registry.get("promptfl"), csc)
    (run,) = expand(Experiment(**{**experiment().model_dump(), "methods": [{"name": "taskres"}]}))
    with pytest.raises(FedLensError, match="TaskRes cannot train clients that each predict among their own"):
        resolve(run, prepare_inputs(run, both()).context, "methods.0")


def test_an_undeclared_parameter_of_each_class_is_found():
    whole, images, protocol = federation()
    with pytest.raises(FedLensError, match="its parameter 'weight' depends on the classes"):
        cohorts_of_one(BiasMethod, BiasConfig(), whole, images, protocol)


@pytest.mark.slow  # the refusal and two methods are tested above
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_that_is_not_refused_trains(name):
    if refused(name):
        return
    backbone = tiny.drawn_backbone()
    whole, images, protocol = federation()
    config = registry.build_config(name, SMALL.get(name, {}))
    values = federation_for(name, backbone=backbone).pool.values
    if values.shape[1:] != whole.pool.values.shape[1:]:
        values = values.repeat(6, *[1] * (values.dim() - 1))[: len(images)]
        whole = federation_of_all(images, protocol, values, backbone, seed=1)
    of_clients = cohorts_of_one(registry.get(name), config, whole, images, protocol)
    last = loop_of(whole, of_clients, 1).finished[-1]
    assert {c.test_set for c in last.cells if c.split == TEST} == set(range(1, 8))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data": {"name": "shapes", "training_classes": "base"}, "further_data": []}, "partition.kind"),
        ({"partition": {"kind": "domain"}}, "partition.kind"),
        ({"data": {"name": "shapes"}, "partition": {"kind": "domain"}}, "further_data"),
        ({"partition": {"kind": "blocks", "classes_per_client": 2, "unseen": 0.2}}, "partition.unseen"),
        ({"held_out": ["photo"]}, "held_out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, field):
    run = expand(Experiment(**{**experiment().model_dump(), **changes}))[0]
    with pytest.raises(FedLensError) as caught:
        prepare_inputs(run, both())
    assert caught.value.field == field


def test_two_data_sets_of_one_name_are_told_apart_by_their_folders():
    one = replace(image_set("folder", THINGS, "a {}."), root="/data/red")
    assert joined([one, replace(one, root="/data/blue")]).domains == ("folder red", "folder blue")
    with pytest.raises(FedLensError, match="named twice"):
        joined([one, one])


def test_rows_of_a_joined_set_are_those_of_its_parts():
    images = both()
    ends = np.cumsum([0, *map(len, images.parts)])
    for part, (start, end), prefix in zip(images.parts, pairwise(ends), ("trees", "things"), strict=True):
        assert [images.classes[c] for c in images.labels[start:end]] == [
            f"{prefix}: {part.classes[c]}" for c in part.labels
        ]
        assert images.keys[start:end] == tuple(f"{prefix}/{key}" for key in part.keys)
    assert images.fingerprint != joined(images.parts[::-1]).fingerprint
