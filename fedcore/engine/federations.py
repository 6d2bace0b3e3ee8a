"""Build the federation of a run from its images, their assignment to clients and their encoded values.

In a cross-class federation each client predicts among its own classes only. A label space decides which names
are encoded and scored. Each client is therefore a cohort of one, whose method is made for a ``Problem`` with
the client's classes and the prompt of its data set. What clients share must not depend on classes;
``cohorts_of_one`` checks this for methods that do not declare it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import GLOBAL, MAX_EVALUATED_CLIENTS, Entity
from fedcore.base.lazy import Tensor, torch
from fedcore.base.seeds import draw_names
from fedcore.clip.backbone import Backbone
from fedcore.data.descriptions import LazyDescriptions
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment
from fedcore.data.training_classes import CrossClass
from fedcore.engine.clients.executor import Cohort, differing_start, entries_by_class, first_adapted_code
from fedcore.engine.clients.hooks import make
from fedcore.engine.prepare import RunInputs, TransferInputs
from fedcore.methods.base import Method
from fedcore.methods.federation import ClassSets, Federation, LabelSpace, Pool, Problem, Rows, TestSet
from fedcore.methods.hyperparameters import MethodConfig

_SUMMED_AT_ONCE = 2**14
_SHARE_FOR_SAMPLES = 0.5
"""Share of a GPU's free memory for encoded samples; training needs the rest."""


def build_federation(
    images: ImageSet,
    inputs: RunInputs,
    values: Tensor,
    backbone: Backbone,
    seed: int,
    root: str | None,
) -> Federation:
    """Make a federation of encoded samples and their partition. Shape: values (samples, ...)."""
    if inputs.cross_class is not None:
        return federation_of_all(images, inputs.cross_class, values, backbone, seed)
    assignment, split = inputs.assignment, inputs.halves

    sets = [
        TestSet(n, "client", images.domains[d] if d >= 0 else None)
        for n, d in zip(assignment.clients, assignment.client_domain.tolist(), strict=True)
    ]
    test = list(assignment.test)
    if split is None or len(images.domains) > 1:  # the base classes of a single domain are one test set
        sets += [TestSet(d, "domain", d) for d in assignment.domains]
        test += assignment.domain_test
    unseen = inputs.unseen
    if unseen is not None and len(unseen.clients) > MAX_EVALUATED_CLIENTS:
        drawn = draw_names(unseen.clients, MAX_EVALUATED_CLIENTS, seed, "evaluated clients")
        unseen = unseen.of_clients(drawn)
    if unseen is not None:
        names = zip(unseen.clients, unseen.client_domain.tolist(), strict=True)
        sets += [TestSet(f"unseen {n}", "unseen", images.domains[d] if d >= 0 else None) for n, d in names]
        test += unseen.test
    if split is not None:
        sets += [TestSet("base classes", "base"), TestSet("new classes", "new")]
        test += [split.base_test, np.array([], dtype=np.int64)]
    classes = inputs.trained_classes
    pool = Pool(values, _labels(images, classes, backbone), backbone.device, backbone.dtype)
    descriptions = LazyDescriptions(images.name, root, images.classes)
    problem = replace(
        _problem(images, assignment, classes, backbone, seed, descriptions),
        class_sums=lambda: class_sums(pool, np.sort(np.concatenate(assignment.train)), len(classes)),
    )
    spaces = []
    if split is not None:
        rows = Rows.only(len(sets), len(sets) - 1, split.new_test)
        there = replace(pool, labels=_labels(images, split.new, backbone))
        spaces.append(LabelSpace(there, rows, problem.among(split.new)))
    federation = Federation(
        pool,
        Rows.of(assignment.train),
        Rows.of(assignment.validation),
        Rows.of(test),
        tuple(sets),
        problem,
        class_sets(images.labels_among(classes), assignment),
        unlabelled_rows(images, assignment),
        tuple(spaces),
    )
    return federation if unseen is None else replace(federation, newcomers=_newcomers(federation, unseen))


def _problem(
    images: ImageSet,
    assignment: Assignment,
    classes: tuple[str, ...],
    backbone: Backbone,
    seed: int,
    descriptions: Mapping[str, Sequence[str]],
) -> Problem:
    return Problem(
        backbone=backbone,
        classes=classes,
        template=images.template,
        clients=tuple(assignment.clients),
        domains=images.domains,
        client_domain=torch.tensor(assignment.client_domain.tolist(), dtype=torch.int64),
        samples=torch.tensor([len(rows) for rows in assignment.train], dtype=torch.int64),
        class_counts=torch.as_tensor(np.asarray(assignment.counts), dtype=torch.int64),
        seed=seed,
        descriptions=descriptions,
    )


def class_sums(pool: Pool, rows: np.ndarray, classes: int) -> Tensor:
    """Sum the normalised embeddings of each class. Shape: rows (samples,) -> (classes, d) float64."""
    sums = torch.zeros(classes, pool.values.shape[-1], dtype=torch.float64, device=pool.device)
    for some in torch.as_tensor(rows).split(_SUMMED_AT_ONCE):
        one_hot = torch.nn.functional.one_hot(pool.y(some), classes).double()
        sums += one_hot.T @ torch.nn.functional.normalize(pool.x(some).double(), dim=-1)
    return sums


def with_transfer(
    federation: Federation, other: TransferInputs, values: Tensor, root: str | None
) -> Federation:
    """Return the federation with a test set of another data set, in its own label space.

    Shape: values (samples of the other data set, ...).
    """
    images, problem, pool = other.images, federation.problem, federation.pool
    if pool.values.device.type != "cpu":
        values = placed(values, problem.backbone)
    labels = torch.as_tensor(images.labels, dtype=torch.int64).to(pool.device)
    descriptions = LazyDescriptions(images.name, root, images.classes)
    there = problem.among(images.classes, template=images.template, descriptions=descriptions)
    before = len(federation.test_sets)
    rows = Rows.only(before + 1, before, other.test)

    def and_nothing(test: Rows) -> Rows:
        return Rows(test.flat, torch.cat([test.counts, test.counts.new_zeros(1)]))

    spaces = [replace(space, test=and_nothing(space.test)) for space in federation.label_spaces]
    return replace(
        federation,
        test=and_nothing(federation.test),
        test_sets=(*federation.test_sets, TestSet(images.name, "transfer")),
        label_spaces=(*spaces, LabelSpace(Pool(values, labels, pool.device, pool.dtype), rows, there)),
    )


def _newcomers(federation: Federation, unseen: Assignment) -> Federation:
    """Return the clients that never take part as a separate federation of the same samples."""
    train = Rows.of(unseen.train)
    return Federation(
        federation.pool,
        train,
        Rows.none(len(unseen.clients)),
        Rows.of(unseen.test),
        tuple(TestSet(name, "client") for name in unseen.clients),
        replace(
            federation.problem,
            clients=unseen.clients,
            client_domain=torch.as_tensor(unseen.client_domain),
            samples=train.counts,
            class_counts=torch.as_tensor(unseen.counts, dtype=torch.int64),
        ),
        unlabelled=federation.unlabelled,
    )


def unlabelled_rows(images: ImageSet, assignment: Assignment) -> Tensor | None:
    """Return the rows of the held-out domain outside its test set. Shape: -> (samples,)."""
    if assignment.held_out is None:
        return None
    domain = images.domains.index(assignment.held_out)
    rows = np.setdiff1d(np.flatnonzero(images.domain == domain), assignment.domain_test[domain])
    return torch.as_tensor(rows)


def class_sets(labels: np.ndarray, assignment: Assignment) -> ClassSets | None:
    """Collect all test samples of each client's classes, without those of a held-out domain.

    None if the clients belong to different domains: such a client is measured on its domain, as it has never
    trained on its classes in other domains. None too if the class sets equal the clients' own test sets
    (disjoint classes), so that no value is stored twice.

    Shape: labels (samples,), as the counts of the assignment have them.
    """
    domains = assignment.client_domain
    if (domains >= 0).all() and len(set(domains.tolist())) > 1:
        return None
    pairs = zip(assignment.domains, assignment.domain_test, strict=True)
    rows = np.sort(np.concatenate([rows for name, rows in pairs if name != assignment.held_out]))
    held = np.asarray(assignment.counts) > 0
    pairs = zip(held, assignment.test, strict=True)
    if all(np.array_equal(rows[classes[labels[rows]]], np.sort(test)) for classes, test in pairs):
        return None
    return ClassSets(torch.as_tensor(rows), torch.as_tensor(held))


def adapted_entities(federation: Federation) -> tuple[Entity, ...]:
    """List the models of the unseen clients, each after it has adapted the global one."""
    new = federation.newcomers
    if new is None:
        return ()
    pairs = zip(new.problem.clients, new.problem.class_counts.tolist(), strict=True)
    return tuple(
        Entity(code, "adapted", f"{name}, adapted", samples=sum(held), class_counts=tuple(held))
        for code, (name, held) in enumerate(pairs, start=first_adapted_code(federation))
    )


def entities(federation: Federation) -> tuple[Entity, ...]:
    """List the rows and columns of the accuracy matrix: global, clients, further test sets, class sets."""
    tested = sum((space.test.counts for space in federation.label_spaces), federation.test.counts)
    listed = [Entity(GLOBAL, "global", "global")]
    for code, test_set in enumerate(federation.test_sets, start=1):
        counts, samples = None, int(tested[code - 1])
        if test_set.kind == "client":
            counts = tuple(federation.problem.class_counts[code - 1].tolist())
            samples = sum(counts)
        entity = Entity(code, test_set.kind, test_set.name, domain=test_set.domain, samples=samples)
        listed.append(replace(entity, class_counts=counts))
    if (sets := federation.class_sets) is not None:
        present = torch.bincount(federation.pool.y(sets.rows).cpu(), minlength=sets.held.shape[1])
        pairs = zip(federation.problem.clients, sets.held, strict=True)
        for code, (client, held) in enumerate(pairs, start=len(listed)):
            samples = int((present * held).sum())
            listed.append(Entity(code, "classes", f"classes of {client}", samples=samples))
    return tuple(listed)


def placed(values: Tensor, backbone: Backbone) -> Tensor:
    """Return encoded samples, on the backbone's device if there is room for them.

    Larger encodings stay in the machine's memory, and each batch is copied during the step before it.
    """
    device, room = backbone.device, 4 * 2**30
    if device.type == "cuda":
        room = int(_SHARE_FOR_SAMPLES * torch.cuda.mem_get_info(device)[0])
    return values.to(device) if device.type != "cpu" and values.nbytes <= room else values


def federation_of_all(
    images: ImageSet, dealt: CrossClass, values: Tensor, backbone: Backbone, seed: int
) -> Federation:
    """Return all clients with the base and new classes of each data set as test sets in their label spaces.

    Its problem names the base classes of all data sets as pages show them; no method is made for it.

    Args:
        images: as ``training_classes.joined`` returns them.

    Shape: values (samples, ...).
    """
    assignment = dealt.assignment
    domains = [images.domains[d] for d in assignment.client_domain]
    sets = [TestSet(n, "client", d) for n, d in zip(assignment.clients, domains, strict=True)]
    sets += [TestSet(f"base: {name}", "base", name) for name in images.domains]
    sets += [TestSet(f"new: {name}", "new", name) for name in images.domains]
    problem = _problem(images, assignment, dealt.classes, backbone, seed, {})
    whole = Federation(
        Pool(values, _labels(images, dealt.classes, backbone), backbone.device, backbone.dtype),
        Rows.of(assignment.train),
        Rows.none(len(domains)),
        Rows.none(len(sets)),
        tuple(sets),
        problem,
    )
    spaces = []
    halves = [(of.base, of.base_test) for of in dealt.halves] + [(of.new, of.new_test) for of in dealt.halves]
    for column, (names, rows) in enumerate(halves, start=len(domains)):
        place = (column - len(domains)) % len(dealt.halves)
        labels = _labels(images, _listed(images, place, names), backbone)
        there = problem.among(names, template=images.parts[place].template)
        test = Rows.only(len(sets), column, rows)
        spaces.append(LabelSpace(replace(whole.pool, labels=labels), test, there))
    return replace(whole, label_spaces=tuple(spaces))


def federation_of_client(whole: Federation, images: ImageSet, dealt: CrossClass, client: int) -> Federation:
    """Return the federation in which one client trains and is tested, among its own classes."""
    problem, place = whole.problem, int(whole.problem.client_domain[client])
    names, part, counts = dealt.blocks[client], images.parts[place], dealt.assignment.counts
    listed = _listed(images, place, names)
    held = torch.zeros(len(problem.clients), len(names), dtype=torch.int64)
    held[client] = torch.as_tensor(counts[client][[dealt.classes.index(name) for name in listed]])
    return replace(
        whole,
        pool=replace(whole.pool, labels=_labels(images, listed, problem.backbone)),
        validation=Rows.only(len(problem.clients), client, dealt.assignment.validation[client]),
        test=Rows.only(len(whole.test_sets), client, dealt.assignment.test[client]),
        problem=replace(problem, classes=names, template=part.template, class_counts=held),
        label_spaces=(),
        part_of=whole,
    )


def cohorts_of_one(
    cls: type[Method], config: MethodConfig, whole: Federation, images: ImageSet, dealt: CrossClass
) -> tuple[Cohort, ...]:
    """Return each client with the method that is made for its classes.

    Raises:
        FedLensError: if parameters have entries for classes, or start from values that depend on them.
    """
    cohorts = []
    for client in range(len(whole.problem.clients)):
        federation = federation_of_client(whole, images, dealt, client)
        cohorts.append(Cohort(make(cls, config, federation.problem), federation, range(client, client + 1)))
    most = max(cohorts, key=lambda c: len(c.federation.problem.classes))
    found = entries_by_class(most.method) if len(most.federation.problem.classes) > 1 else ()
    found = found or tuple(name for _, name, *_ in differing_start(cohorts[0], cohorts[-1]))
    if found:
        raise FedLensError(
            f"{cls.about.title} cannot train clients that each predict among their own classes only: its "
            f"parameter '{found[0]}' depends on the classes; leave it out, or choose another protocol",
            "method.name",
        )
    return tuple(cohorts)


def _labels(images: ImageSet, listed: Sequence[str], backbone: Backbone) -> Tensor:
    """Return each sample's label as an index into some of the joined images' classes, -1 for others."""
    return torch.as_tensor(images.labels_among(listed), dtype=torch.int64).to(backbone.device)


def _listed(images: ImageSet, place: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return classes of one data set by their names in the joined images."""
    return tuple(f"{images.domains[place]}: {name}" for name in names)
