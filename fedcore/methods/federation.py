"""A federation as tensors: one pool of encoded samples, and the rows of it that each client holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.seeds import torch_generator
from fedcore.clip.backbone import Backbone
from fedcore.clip.prompts import class_features


@dataclass(frozen=True)
class Rows:
    """Rows of the pool held by several owners (clients or test sets), one owner's after the other's.

    They are not stored as a padded table, which is made only on request: with ten thousand clients' test
    sets beside that of one domain, nearly all of the table would be padding.

    Shape: flat (rows of all owners,) int64, counts (owners,) int64.
    """

    flat: Tensor
    counts: Tensor

    @classmethod
    def of(cls, rows: list[np.ndarray]) -> Self:
        """Make it from one array of pool rows per owner."""
        counts = torch.tensor([len(r) for r in rows], dtype=torch.int64)
        parts = [torch.as_tensor(r, dtype=torch.int64) for r in rows]
        return cls(torch.cat(parts) if parts else counts, counts)

    @classmethod
    def only(cls, owners: int, owner: int, held: np.ndarray) -> Self:
        """Make it for many owners, of which only one has rows."""
        counts = torch.zeros(owners, dtype=torch.int64)
        counts[owner] = len(held)
        return cls(torch.as_tensor(held, dtype=torch.int64), counts)

    @classmethod
    def none(cls, owners: int) -> Self:
        """Make it for owners without rows."""
        return cls(torch.zeros(0, dtype=torch.int64), torch.zeros(owners, dtype=torch.int64))

    @cached_property
    def starts(self) -> Tensor:
        """The place in ``flat`` where the rows of each owner begin. Shape: (owners,) int64."""
        return self.counts.cumsum(0) - self.counts

    @cached_property
    def owners(self) -> Tensor:
        """The owner of each row. Shape: like flat."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts)

    @cached_property
    def mask(self) -> Tensor:
        """False on the padding of ``index``. Shape: (owners, longest) bool."""
        longest = max(1, int(self.counts.max()) if len(self.counts) else 1)
        return torch.arange(longest)[None] < self.counts[:, None]

    @cached_property
    def index(self) -> Tensor:
        """Each owner's rows, padded with its first. Shape: (owners, longest) int64.

        An owner without rows has another's: a row that nobody here holds may be of a class without a label.
        """
        filled = self.flat if len(self.flat) else torch.zeros(1, dtype=torch.int64)
        first = filled[self.starts.clamp(max=len(filled) - 1)]
        return first[:, None].repeat(1, self.mask.shape[1]).masked_scatter_(self.mask, self.flat)

    def held_by(self, owner: int) -> Tensor:
        """Return one owner's rows. Shape: -> (rows,)."""
        start = int(self.starts[owner])
        return self.flat[start : start + int(self.counts[owner])]

    def select(self, owners: Tensor) -> "Rows":
        """Return the rows of some owners."""
        counts = self.counts[owners]
        within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return Rows(self.flat[self.starts[owners].repeat_interleave(counts) + within], counts)


@dataclass(frozen=True)
class Pool:
    """All encoded samples of a run.

    Shape: values (samples, ...) (a memory-mapped CPU tensor or a device tensor), labels (samples,) on
    the device. Methods compute in ``dtype``, which may differ from the type of the stored values.
    """

    values: Tensor
    labels: Tensor
    device: "torch.device"
    dtype: "torch.dtype"

    def x(self, index: Tensor) -> Tensor:
        """Return encoded samples, moved to the device. Shape: index (...) -> (..., *sample shape)."""
        flat = self.values[index.flatten().to(self.values.device)]
        if self.device.type == "cuda" and flat.device.type == "cpu":
            flat = flat.pin_memory().to(self.device, non_blocking=True)  # while earlier steps still compute
        return flat.to(self.device, self.dtype).view(*index.shape, *self.values.shape[1:])

    def y(self, index: Tensor) -> Tensor:
        """Return labels, on the device. Shape: index (...) -> (...)."""
        return self.labels[index.to(self.labels.device)]


@dataclass(frozen=True)
class LocalData:
    """The training data of some clients, as a method sees it.

    Shape: clients (participants,) index into ``problem.clients``; unlabelled (samples,) pool rows of the
    held-out domain outside its test set, whose labels no method may read; None if no domain is held out;
    validation, the clients' validation samples, on which a method may choose but not train; None: none.
    """

    pool: Pool
    rows: Rows
    clients: Tensor
    problem: "Problem"
    unlabelled: Tensor | None = None
    validation: Rows | None = None

    @cached_property
    def x(self) -> Tensor:
        """Encoded samples; padding repeats the client's first. Shape: (participants, longest, ...)."""
        return self.pool.x(self.rows.index)

    @property
    def labels(self) -> Tensor:
        """Labels of the samples. Shape: (participants, longest)."""
        return self.pool.y(self.rows.index)

    @property
    def mask(self) -> Tensor:
        """False on padding. Shape: (participants, longest)."""
        return self.rows.mask.to(self.pool.device)

    @cached_property
    def class_counts(self) -> Tensor:
        """True class counts N_k,c. Shape: (participants, classes) int64."""
        one_hot = torch.nn.functional.one_hot(self.labels, len(self.problem.classes))
        return (one_hot * self.mask[..., None]).sum(1)


@dataclass(frozen=True)
class Problem:
    """All that a method may know about a run: the frozen CLIP, the classes and the clients, but no samples.

    Shape: client_domain, samples (clients,); class_counts (clients, classes).

    Attributes:
        clients: client names; draws are keyed by name, so that their order does not matter.
        client_domain: index into ``domains``, -1 where a client mixes domains.
        descriptions: the data set's own written descriptions of each class (GT); empty if it has none.
        class_sums: the sums over the clients' training samples from which ``class_means`` follow.
    """

    backbone: Backbone
    classes: tuple[str, ...]
    template: str
    clients: tuple[str, ...]
    domains: tuple[str, ...]
    client_domain: Tensor
    samples: Tensor
    class_counts: Tensor
    seed: int
    descriptions: Mapping[str, Sequence[str]]
    class_sums: Callable[[], Tensor] | None = None

    @property
    def device(self) -> "torch.device":
        """The device that holds the parameters."""
        return self.backbone.device

    def among(self, classes: tuple[str, ...], **changes: Any) -> Self:
        """Return the problem with other classes, of which no client has samples, and further changes."""
        nobody = self.class_counts.new_zeros(len(self.clients), len(classes))
        return replace(self, classes=classes, class_counts=nobody, **changes)

    @cached_property
    def class_features(self) -> Tensor:
        """Normalised text features of the class prompts, with which zero-shot CLIP predicts.

        Shape: (classes, d).
        """
        return class_features(self.backbone, self.classes, self.template)

    @cached_property
    def class_means(self) -> Tensor:
        """Unit vectors of the mean normalised training embedding of each class; 0 for a class without any.

        Source: ours. In a federation each client sends its classes' means and counts once, before round 1,
        and the server averages the means weighted by the counts. Only training samples of clients that take
        part are read: neither validation nor test samples, nor those of unseen clients or held-out domains.

        Shape: (classes, d).
        """
        assert self.class_sums is not None, "clients have classes of their own, which refuses such methods"
        return torch.nn.functional.normalize(self.class_sums(), dim=-1).to(self.backbone.dtype)

    def generator(self, *purpose: str | int) -> Generator:
        """Return this run's generator for one purpose, e.g. ``generator("init", "prompt")``, on the CPU."""
        return torch_generator(self.seed, *purpose)

    def draw_per_client(self, draw: Callable[[Generator], Tensor], *purpose: str | int) -> Tensor:
        """Draw once per client, keyed by client name. Shape: draw -> (...), result (clients, ...)."""
        return torch.stack([draw(self.generator(*purpose, name)) for name in self.clients]).to(self.device)


TestKind = Literal["client", "domain", "unseen", "base", "new", "transfer"]


@dataclass(frozen=True)
class TestSet:
    """One column of the accuracy matrix: the samples of a client, a domain, or the base or new classes."""

    name: str
    kind: TestKind
    domain: str | None = None


@dataclass(frozen=True)
class ClassSets:
    """For each client, all test samples of the classes that it trains on, whichever client holds them.

    This is FedAlign's "local performance"; a client's own test set is its share of them.

    Shape: rows (samples,) pool rows of all test samples concerned, ascending; held (clients, classes) bool.
    """

    rows: Tensor
    held: Tensor


@dataclass(frozen=True)
class LabelSpace:
    """Test samples that are scored among other class names than those trained on.

    A label space decides which names are encoded and scored. It does not mask the scores of all names, since
    what a method predicts may depend on the set of names.

    Attributes:
        pool: its labels index ``problem.classes``; -1 for samples of other classes.
        test: one owner per entry of ``Federation.test_sets``; none but its own test sets have rows.
        problem: the training's, with other classes and class counts.
    """

    pool: Pool
    test: Rows
    problem: Problem


@dataclass(frozen=True)
class Federation:
    """Encoded samples, and the rows of every client and test set.

    train and validation have one owner per client. test has one owner per entry of ``test_sets``; the first
    ``len(problem.clients)`` of them belong to the clients, in client order. A test set without rows belongs
    to one of ``label_spaces``. Where clients predict among their own classes only, each has a federation in
    which only its own samples are validated and tested, ``part_of`` that of all clients, whose samples are
    tested in label spaces only. ``class_sets`` is None if it would add nothing to the test sets. unlabelled
    (samples,) are the held-out domain's rows outside its test set. ``newcomers`` are the clients that never
    take part, with their training samples. ``test_sample`` is the run's field: between the first and the last
    round, as many samples of each test set are tested, except of clients' own.
    """

    pool: Pool
    train: Rows
    validation: Rows
    test: Rows
    test_sets: tuple[TestSet, ...]
    problem: Problem
    class_sets: ClassSets | None = None
    unlabelled: Tensor | None = None
    label_spaces: tuple[LabelSpace, ...] = ()
    newcomers: "Federation | None" = None
    part_of: "Federation | None" = None
    test_sample: int | None = None

    @cached_property
    def in_between(self) -> Self:
        """The federation as its models are tested between the first and the last round."""
        clients = len(self.problem.clients)
        rows = [self.test.select(torch.arange(clients)).flat]
        counts = self.test.counts.clone()
        for i, test_set in enumerate(self.test_sets[clients:], start=clients):
            held = self.test.held_by(i)
            if self.test_sample is not None and test_set.kind != "unseen" and len(held) > self.test_sample:
                # By name and from ascending rows: the order of clients does not change the sample.
                generator = self.problem.generator("test sample", test_set.kind, test_set.name)
                drawn = torch.randperm(len(held), generator=generator)[: self.test_sample]
                held = held.sort().values[drawn].sort().values
            rows.append(held)
            counts[i] = len(held)
        return replace(self, test=Rows(torch.cat(rows), counts))

    def seen_in(self, space: LabelSpace) -> Self:
        """Return the federation as its models are tested in a label space: with its test sets only."""
        return replace(
            self,
            pool=space.pool,
            validation=Rows.none(len(self.problem.clients)),
            test=space.test,
            problem=space.problem,
            class_sets=None,
            label_spaces=(),
        )

    def local_data(self, clients: Tensor) -> LocalData:
        """Return the training data of some clients. Shape: clients (participants,)."""
        rows = self.train.select(clients)
        held_out = self.validation.select(clients)
        return LocalData(self.pool, rows, clients, self.problem, self.unlabelled, held_out)
