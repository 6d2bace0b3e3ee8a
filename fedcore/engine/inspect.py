"""Inspections of trained runs: predictions, feature space, Grad-CAM maps, nearest words, disagreements.

They are computed from a run's checkpoint, on demand and outside the training loop, and change no recorded
value. The predictions behind the accuracies of one round are made by the evaluation itself: the same passes
with the same chunks, so that they have the bits of the evaluation that was recorded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, CROSS_CLASS_NOT_ANALYSED, GLOBAL, TEST, Cell
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.base.progress import Progress, Work
from fedcore.clip.backbone import Backbone
from fedcore.clip.encodings import parse_reads
from fedcore.clip.towers import resnet_map, resnet_regions
from fedcore.config import RunConfig
from fedcore.data.images import ImageSet
from fedcore.engine.clients.evaluator import Evaluator, Scores, samples_at_once
from fedcore.engine.clients.executor import Cohort, GlobalPasses, OwnModels, Worker, after_aggregation
from fedcore.engine.environment import resolve_environment
from fedcore.engine.train import make_server, set_up_again
from fedcore.methods.base import Method, Params, Ragged, State
from fedcore.methods.federation import Federation

Arrays = dict[str, np.ndarray]
SHOWN = 12
"""Images that are shown with their maps of each kind: only one of two models right, or both wrong."""
EXAMPLES = 8
"""Images of a test set that are shown with their maps."""
_EXPLAINED = 12
"""Images that are explained at once: their graph may reach through the whole image tower."""
_CHUNK = 256


@dataclass(frozen=True)
class Model:
    """One model of a run, with a model axis of 1.

    Attributes:
        method, federation: of its cohort, so that samples are encoded by its own backbone.
    """

    method: Method
    federation: Federation
    params: Params
    head: Params

    def predict(self, rows: Tensor) -> Tensor:
        """Predict the classes of samples. Shape: rows (1, samples) of the pool -> (samples,)."""
        x = self.federation.pool.x
        parts = [self.method.logits(self.params, self.head, x(p)).argmax(-1) for p in self._parts(rows)]
        return torch.cat(parts, 1)[0].cpu()

    def features(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the normalised features of samples and classes; None if the method compares none.

        If the class features depend on the image, a class is represented by their mean direction.

        Shape: rows (1, samples) -> images (samples, d), classes (classes, d), float64 on the CPU.
        """
        images, classes = [], []
        for part in self._parts(rows):
            pair = self.method.features(self.params, self.head, self.federation.pool.x(part))
            if pair is None:
                return None
            images.append(F.normalize(pair[0][0].double(), dim=-1).cpu())
            classes.append(F.normalize(pair[1][0].double(), dim=-1).cpu())
        if classes[0].dim() == 2:
            return torch.cat(images), classes[0]
        return torch.cat(images), F.normalize(torch.cat(classes).mean(0), dim=-1)

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        if self.method.batch_order is not None:
            return (rows,)  # the method cuts its own batches
        size = min(_CHUNK, samples_at_once(self.method, self.federation.pool))
        return tuple(rows[:, i : i + size] for i in range(0, rows.shape[1], size))


@dataclass(frozen=True)
class RunSnapshot:
    """The state of a run after one round.

    Attributes:
        cohorts: its clients' methods and federations.
        images: its data set, with pixels.
    """

    cohorts: tuple[Cohort, ...]
    state: State
    images: ImageSet
    round: int

    @property
    def federation(self) -> Federation:
        """The first cohort's federation; cohorts differ in their encodings only."""
        return self.cohorts[0].federation

    @property
    def has_global(self) -> bool:
        """True if the run has a global model; clients with several backbones have none in common."""
        backbones = {id(c.federation.problem.backbone) for c in self.cohorts}
        return len(backbones) == 1 and self.cohorts[0].method.models(self.state).global_model is not None

    def model(self, entity: int) -> Model:
        """Return one model by entity code, with its head."""
        names = self.federation.problem.clients
        if entity == GLOBAL:
            method = self.cohorts[0].method
            if not self.has_global:
                raise FedLensError(f"this run of {method.about.title} has no global model; choose a client")
            params = method.models(self.state).global_model or {}
            return Model(method, self.federation, params, method.head(params, None))
        if not 1 <= entity <= len(names):
            raise FedLensError(
                f"no model {entity}; clients are 1 to {len(names)}, the global model is {GLOBAL}"
            )
        cohort = next(c for c in self.cohorts if entity - 1 in c.clients)
        client = torch.tensor([entity - 1])
        params = cohort.method.models(self.state).of(client)
        head = cohort.method.head(params, cohort.federation.local_data(client))
        return Model(cohort.method, cohort.federation, params, head)

    def test_rows(self, entity: int) -> Tensor:
        """Return the pool rows of a test set by entity code, in evaluation order. Shape: (1, samples)."""
        sets = self.federation.test_sets
        if not 1 <= entity <= len(sets):
            raise FedLensError(f"no test set {entity}; there are 1 to {len(sets)}")
        return Evaluator(self.cohorts[0].method, self.federation).order(self.federation.test, entity - 1)


def restore(
    run: RunConfig, checkpoint: Path, artifacts: Path, device: str, environment: Mapping[str, Any] | None
) -> Work[RunSnapshot]:
    """Restore a run from a checkpoint.

    Args:
        environment: the run's recorded choices (threads...), so that it predicts as during training.
    """
    if run.data.training_classes == "own":
        raise FedLensError(CROSS_CLASS_NOT_ANALYSED)
    resolved = resolve_environment(run, device, environment)
    setup = yield from set_up_again(run, artifacts, device, environment)
    server = make_server(run, setup, int(resolved["chunk"]))
    server.resume(checkpoint)
    server.run_state.need()
    return RunSnapshot(server.cohorts, server.state, setup.images, server.run_state.done)


def predictions(snapshot: RunSnapshot) -> Work[Arrays]:
    """Predict every client's own test samples with its model, and all domains' test sets with the global one.

    Returns:
        sample (pool row), label, predicted, model and test_set as entity codes. Shape: (predictions,) each.
    """
    clients = len(snapshot.federation.problem.clients)
    pairs = [(code, code) for code in range(1, clients + 1)]
    if snapshot.has_global:
        pairs += [(GLOBAL, code) for code in range(clients + 1, len(snapshot.federation.test_sets) + 1)]
        pairs = [(model, code) for model, code in pairs if snapshot.federation.test.counts[code - 1]]
    made = []
    with torch.no_grad():
        for done, (model, test_set) in enumerate(pairs):
            yield Progress("predicting", done, len(pairs))
            rows = snapshot.test_rows(test_set)
            predicted = snapshot.model(model).predict(rows).numpy()
            (sample,) = rows.numpy()
            label = snapshot.federation.pool.y(rows[0]).cpu().numpy()
            codes = (np.full(len(sample), code) for code in (model, test_set))
            made.append((sample, label, predicted, *codes))
    names = ("sample", "label", "predicted", "model", "test_set")
    columns = (np.concatenate(parts).astype(np.int32) for parts in zip(*made, strict=True))
    return dict(zip(names, columns, strict=True))


def feature_space(snapshot: RunSnapshot, model: int | None, test_set: int, most: int = 600) -> Work[Arrays]:
    """Embed one model's image features, class features and centroids in a plane by t-SNE (FedDEAP, Figure 4).

    Features are normalised, because the models compare cosines; a centroid is the mean of a class's images
    among those shown. Neighbourhoods are meaningful in the picture, distances between far points are not.

    Args:
        model: None for those of all clients, each on its own test set and without centroids (Figure 7).
        most: images shown, at most.

    Returns:
        xy (points, 2), kind (points,) 0 image, 1 class feature, 2 centroid, label (points,), predicted
        (points,) -1 except for images, client (points,) their position or 0, sample (images,) pool row.
    """
    from sklearn.manifold import TSNE

    clients = range(1, len(snapshot.federation.problem.clients) + 1)
    pairs = [(model, test_set)] if model is not None else [(client, client) for client in clients]
    read = []
    for done, (entity, of) in enumerate(pairs):
        yield Progress("reading features", done, len(pairs) + 1)
        rows = snapshot.test_rows(of)[:, : max(1, most // len(pairs))]
        inspected = snapshot.model(entity)
        with torch.no_grad():
            pair = inspected.features(rows)
            if pair is None:
                raise FedLensError(
                    f"{inspected.method.about.title} compares no image features with class features, so it "
                    "has no feature space to show"
                )
            read.append((*pair, rows[0], snapshot.federation.pool.y(rows)[0].cpu(), inspected.predict(rows)))
    if len({one[0].shape[1] for one in read}) > 1:
        raise FedLensError("the clients' backbones have features of unequal width; choose one model")
    images, classes, samples, labels, predicted = map(torch.cat, zip(*read, strict=True))
    present = labels.unique() if model is not None else labels[:0]
    centroids = [F.normalize(images[labels == c].mean(0), dim=-1)[None] for c in present]
    points = torch.cat([images, classes, *centroids]).numpy()
    if len(points) < 8:
        raise FedLensError(f"{len(points)} points are too few to embed; choose a larger test set")
    yield Progress("embedding", len(pairs), len(pairs) + 1)
    perplexity = min(30.0, (len(points) - 1) / 4)
    seed = snapshot.federation.problem.seed % 2**32
    xy = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(
        points.astype(np.float32)
    )
    kind = np.repeat([0, 1, 2], [len(images), len(classes), len(centroids)])
    number, sizes = len(classes) // len(pairs), [len(one[2]) for one in read]
    label = np.concatenate([labels.numpy(), np.tile(np.arange(number), len(pairs)), present.numpy()])
    client = [np.repeat(np.arange(len(pairs)), size) for size in (sizes, number)]
    predicted_or_none = np.full(len(points), -1)
    predicted_or_none[: len(images)] = predicted.numpy()
    return {
        "xy": xy.astype(np.float32),
        "kind": kind,
        "label": label,
        "predicted": predicted_or_none,
        "client": np.concatenate([*client, np.zeros(len(centroids), dtype=int)]),
        "sample": samples.numpy(),
    }


def evidence(snapshot: RunSnapshot, model: int, rows: Tensor) -> Work[Arrays]:
    """Compute Grad-CAM maps (Selvaraju et al., 2017) of a model's prediction and of a method's own networks.

    The map is relu(sum_c a_c A_c) with a_c the mean gradient of the score over positions. A are the tokens
    entering the last layer of a ViT, or those entering the first layer that the method adapts; for a
    ResNet the last feature map. Each map is scaled to a maximum of 1.

    Shape: rows (images,) of the pool.

    Returns:
        pixels (images, side, side, 3) uint8 as the model saw them, label, predicted and sample (images,), and
        one ``map/<score>`` (images, side, side) float16 for each score.
    """
    inspected = snapshot.model(model)
    backbone, method = inspected.federation.problem.backbone, inspected.method
    yield Progress("reading images", 0, 2)
    pixels = torch.stack([backbone.preprocess(snapshot.images.read(int(i)).convert("RGB")) for i in rows])
    pixels = pixels.to(backbone.device, backbone.dtype)
    hidden, finish = _split(backbone, method.reads(method.config, backbone.spec), pixels)
    hidden = hidden.detach().requires_grad_(True)
    x = finish(hidden)[None]
    yield Progress("explaining", 1, 2)
    logits = method.logits(inspected.params, inspected.head, x)
    scores = {"prediction": logits.amax(-1)} | method.gradcam_scores(inspected.params, inspected.head, x)
    predicted = logits.detach().argmax(-1)[0]
    arrays = {
        "pixels": _shown(backbone, pixels),
        "label": snapshot.federation.pool.y(rows).cpu().numpy(),
        "predicted": predicted.cpu().numpy(),
        "probability": logits.detach()[0].softmax(-1).amax(-1).float().cpu().numpy(),
        "sample": rows.numpy(),
    }
    for name, score in scores.items():
        (gradient,) = torch.autograd.grad(score.sum(), hidden, retain_graph=True)
        arrays[f"map/{name}"] = _map(hidden.detach(), gradient, pixels.shape[-1])
    return arrays


def _split(backbone: Backbone, reads: str, pixels: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the activations to explain, and the rest of the frozen pass up to the method's encoding."""
    with torch.no_grad():
        if reads not in ("embedding", "regions"):
            return parse_reads(reads)(backbone, pixels), lambda hidden: hidden
        visual: Any = backbone.model.visual
        if backbone.spec.vision == "resnet":
            pool = visual.attnpool if reads == "embedding" else partial(resnet_regions, visual)
            return resnet_map(visual, pixels), pool
        tower, last = backbone.image, backbone.spec.vision_layers - 1
        hidden = tower.activations(pixels, last)
        if reads == "regions":
            return hidden, lambda hidden: tower.regions(hidden, last)
        return hidden, lambda hidden: tower.tail(hidden[None], last)[0]


def _map(hidden: Tensor, gradient: Tensor, side: int) -> np.ndarray:
    """Weight activations by mean gradients. Shape: both (images, tokens, width) or (images, width, h, w)."""
    if hidden.dim() == 3:
        cells = int(hidden.shape[1] ** 0.5)
        grid = [
            t[:, t.shape[1] - cells**2 :].transpose(1, 2).unflatten(2, (cells, cells))
            for t in (hidden, gradient)
        ]
        hidden, gradient = grid  # the class token has no position and is left out
    weight = gradient.mean((2, 3), keepdim=True)
    heat = torch.relu((weight * hidden).sum(1, keepdim=True))
    heat = F.interpolate(heat.float(), size=(side, side), mode="bilinear", align_corners=False)[:, 0]
    return (heat / heat.amax((1, 2), keepdim=True).clamp(min=1e-12)).cpu().numpy().astype(np.float16)


def _shown(backbone: Backbone, pixels: Tensor) -> np.ndarray:
    """Undo the preprocessing of pixels. Shape: (images, 3, side, side) -> (images, side, side, 3)."""
    visual: Any = backbone.model.visual
    settings = visual.preprocess_cfg
    mean, std = (torch.tensor(settings[k], device=pixels.device).view(1, 3, 1, 1) for k in ("mean", "std"))
    return (255 * (pixels * std + mean)).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy()


def nearest_words(snapshot: RunSnapshot, model: int, top: int = 5) -> list[dict[str, object]]:
    """Find the tokens nearest to each learned prompt vector, by Euclidean distance (as in CoOp).

    Returns:
        one row per prompt, class (None if all share the prompt) and position, with its nearest ``words``
        and their ``distances``.
    """
    inspected = snapshot.model(model)
    clients = None if model == GLOBAL else torch.tensor([model - 1])
    prompts = inspected.method.prompts(inspected.params, clients)
    if not prompts:
        raise FedLensError(f"{inspected.method.about.title} learns no prompts; there are no words near them")
    backbone = inspected.federation.problem.backbone
    table = backbone.text.model.token_embedding.weight.detach().double().cpu()
    rows: list[dict[str, object]] = []
    for name, value in prompts.items():
        vectors = value.values[0, : int(value.lengths[0])] if isinstance(value, Ragged) else value[0]
        per_class = vectors.dim() == 3
        flat = vectors.detach().double().cpu().reshape(-1, vectors.shape[-1])
        near = torch.cdist(flat, table).topk(top, largest=False)
        for i, (ids, far) in enumerate(zip(near.indices.tolist(), near.values.tolist(), strict=True)):
            label, position = divmod(i, vectors.shape[-2])
            rows.append(
                {
                    "prompt": name,
                    "class": snapshot.federation.problem.classes[label] if per_class else None,
                    "position": position + 1,
                    "words": [backbone.word(token) for token in ids],
                    "distances": [round(d, 4) for d in far],
                }
            )
    return rows


def disagreement(first: RunSnapshot, second: RunSnapshot, model: int, test_set: int) -> Work[Arrays]:
    """Predict a test set with the same model of two runs, and explain images that one or both get wrong.

    Args:
        model, test_set: entity codes, equal in both runs.

    Returns:
        sample (pool row), label, first and second (predictions). Shape: (samples,) each. ``shown``, positions
        of the explained images among them, and for these ``first/pixels``, ``first/map`` and
        ``first/probability`` of the prediction, and the same of ``second``, as in ``evidence``.
    """
    rows = first.test_rows(test_set)
    clients = [run.federation.problem.clients for run in (first, second)]
    if clients[0] != clients[1] or not torch.equal(rows, second.test_rows(test_set)):
        raise FedLensError("the two runs do not have the same test samples, so their images are not compared")
    with torch.no_grad():
        yield Progress("predicting", 0, 4)
        by_first = first.model(model).predict(rows).numpy()
        yield Progress("predicting", 1, 4)
        by_second = second.model(model).predict(rows).numpy()
    label = first.federation.pool.y(rows)[0].cpu().numpy()
    right_first, right_second = by_first == label, by_second == label
    kinds = (right_first & ~right_second, ~right_first & right_second, ~right_first & ~right_second)
    shown = np.concatenate([np.flatnonzero(kind)[:SHOWN] for kind in kinds])
    arrays = {
        "sample": rows[0].numpy(),
        "label": label,
        "first": by_first,
        "second": by_second,
        "shown": shown,
    }
    if shown.size:
        for done, (name, snapshot) in enumerate((("first", first), ("second", second)), 2):
            yield Progress("explaining", done, 4)
            parts = []
            for start in range(0, shown.size, _EXPLAINED):
                some = torch.from_numpy(shown[start : start + _EXPLAINED])
                parts.append((yield from evidence(snapshot, model, rows[0, some])))
            for key in ("pixels", "map/prediction", "probability"):
                arrays[f"{name}/{key.partition('/')[0]}"] = np.concatenate([part[key] for part in parts])
    return arrays


@dataclass(frozen=True)
class TestSamples:
    """The samples of one test set, as rows of the data set, and the classes that they are scored among.

    Attributes:
        space: 0 for the label space of training, else the number of one of ``Federation.label_spaces``.

    Shape: rows (samples,), ascending.
    """

    space: int
    rows: np.ndarray


@dataclass(frozen=True)
class Predictions:
    """The classes that some models predict on some test sets; one model may stand for several clients.

    Attributes:
        models, test_sets: entity codes; each model has a recorded accuracy on each test set.

    Shape: rows (samples,), those of all test sets, ascending; predicted (samples,).
    """

    models: tuple[int, ...]
    test_sets: tuple[int, ...]
    rows: np.ndarray
    predicted: np.ndarray


def label_spaces(snapshot: RunSnapshot) -> list[tuple[str, ...]]:
    """Return the class names of each label space, that of training first."""
    federation = snapshot.federation
    return [federation.problem.classes, *(space.problem.classes for space in federation.label_spaces)]


def samples_of_test_sets(snapshot: RunSnapshot) -> dict[int, TestSamples]:
    """Return the samples of every test set by its entity code."""
    federation = snapshot.federation
    found: dict[int, TestSamples] = {}
    for space, test in enumerate([federation.test, *(s.test for s in federation.label_spaces)]):
        for i in range(len(test.counts)):
            if test.counts[i]:
                found[i + 1] = TestSamples(space, np.sort(test.held_by(i).numpy()))
    if (sets := federation.class_sets) is not None:
        labels = federation.pool.y(sets.rows).cpu()
        for client, held in enumerate(sets.held):
            rows = sets.rows[held[labels]].numpy()
            found[len(federation.test_sets) + 1 + client] = TestSamples(0, np.sort(rows))
    return found


def predict_round(
    snapshot: RunSnapshot, rounds: int, chunk: int, recorded: Iterable[tuple[int, int]]
) -> tuple[list[Predictions], list[Cell]]:
    """Evaluate a restored round again and return the predictions, and its cells on test samples.

    Args:
        rounds, chunk: of the run, as recorded.
        recorded: model and test set, by entity code, of each accuracy whose predictions are wanted.
    """
    # A prediction that depends on its batch is scored for one model at a time, on one test set at a time.
    in_batches = any(c.method.batch_order is not None for c in snapshot.cohorts)
    listener = _Listener(snapshot.cohorts)
    between = 0 < snapshot.round < rounds
    chunk = 1 if in_batches else chunk
    evaluated = after_aggregation(
        listener.evaluators, listener, snapshot.state, between, chunk, lambda: False
    )
    cells = [c for c in evaluated if (c.split, c.stage) == (TEST, AFTER_AGGREGATION)]
    samples = samples_of_test_sets(snapshot)
    together: dict[tuple[int, int], list[int]] = {}  # by model and label space; in batches, each alone
    for model, test_set in recorded:
        apart = test_set if in_batches else samples[test_set].space
        together.setdefault((model, apart), []).append(test_set)
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for (model, _), test_sets in together.items():
        groups.setdefault((listener.speaker(model), tuple(test_sets)), []).append(model)
    made = []
    for (speaker, chosen), models in groups.items():
        rows = np.unique(np.concatenate([samples[t].rows for t in chosen]))
        predicted = listener.predicted(speaker, samples[chosen[0]].space, rows)
        made.append(Predictions(tuple(models), chosen, rows, predicted))
    return made, cells


class _Listener(Worker):
    """A worker that stores each model's predictions."""

    def __init__(self, cohorts: Sequence[Cohort]) -> None:
        super().__init__(cohorts)
        self.evaluators = [replace(e, note=self._note) for e in self.evaluators]
        self._passes: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        self._speakers: tuple[int, ...] = ()
        self._space = 0
        self._shared: dict[int, int] = {}

    def evaluate(self, part: OwnModels | GlobalPasses) -> list[Cell] | Scores:
        self._space = part.space
        if isinstance(part, GlobalPasses):
            # Each cohort has a global model, which its clients may share: its code is minus its number.
            self._speakers = (-part.cohort,)
            self._shared |= dict.fromkeys((i + 1 for i in self.cohorts[part.cohort].clients), -part.cohort)
        else:
            self._speakers = tuple((part.clients + 1).tolist())
        return super().evaluate(part)

    def _note(self, index: Tensor, predicted: Tensor) -> None:
        rows, classes = index.cpu().numpy(), predicted.to(torch.int32).numpy()
        for i, speaker in enumerate(self._speakers):
            noted_rows = self._passes.setdefault((speaker, self._space), [])
            noted_rows.append((rows[i if len(rows) > 1 else 0], classes[i]))

    def speaker(self, model: int) -> int:
        """Return the model that predicts for a model: itself, or the global one."""
        if model == GLOBAL or any(key[0] == model for key in self._passes):
            return model
        return self._shared[model]

    def predicted(self, speaker: int, space: int, rows: np.ndarray) -> np.ndarray:
        """Return the predictions of ascending rows, of one pass over exactly these if there was one."""
        passes = self._passes[speaker, space]
        for noted, classes in passes:
            order = np.argsort(noted, kind="stable")
            if np.array_equal(noted[order], rows):
                return classes[order]
        noted, classes = (np.concatenate(parts) for parts in zip(*passes, strict=True))
        distinct, first = np.unique(noted, return_index=True)  # the first pass that has a row
        found: np.ndarray = classes[first[np.searchsorted(distinct, rows)]]
        return found
