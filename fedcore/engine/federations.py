"""Build the federation of a run from its images, their assignment to clients and their encoded values."""

from dataclasses import replace

import numpy as np

from fedcore.clip.backbone import Backbone
from fedcore.data.descriptions import LazyDescriptions
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment
from fedcore.engine.clients.generalisation import first_adapted_code
from fedcore.engine.prepare import RunInputs, TransferInputs
from fedcore.federation import ClassSets, Federation, LabelSpace, Pool, Problem, Rows, TestSet
from fedcore.lazy import Tensor, torch
from fedcore.records.codes import GLOBAL
from fedcore.records.events import MAX_EVALUATED_CLIENTS, Entity
from fedcore.seeds import draw_names

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
    device, assignment, split = backbone.device, inputs.assignment, inputs.halves

    def pool(classes: tuple[str, ...]) -> Pool:
        labels = torch.as_tensor(images.labels_among(classes), dtype=torch.int64)
        return Pool(values, labels.to(device), device, backbone.dtype)

    clients = tuple(assignment.clients)
    domain_of = [int(d) for d in assignment.client_domain]
    sets = [
        TestSet(n, "client", images.domains[d] if d >= 0 else None)
        for n, d in zip(clients, domain_of, strict=True)
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
    train = Rows.of(assignment.train)
    classes = inputs.trained_classes
    problem = Problem(
        backbone=backbone,
        classes=classes,
        template=images.template,
        clients=clients,
        domains=images.domains,
        client_domain=torch.tensor(domain_of),
        samples=train.counts,
        class_counts=torch.as_tensor(np.asarray(assignment.counts), dtype=torch.int64),
        seed=seed,
        descriptions=LazyDescriptions(images.name, root, images.classes),
    )
    spaces = []
    if split is not None:
        rows = Rows.only(len(sets), len(sets) - 1, split.new_test)
        spaces.append(LabelSpace(pool(split.new), rows, problem.among(split.new)))
    federation = Federation(
        pool(classes),
        train,
        Rows.of(assignment.validation),
        Rows.of(test),
        tuple(sets),
        problem,
        class_sets(images.labels_among(classes), assignment),
        unlabelled_rows(images, assignment),
        tuple(spaces),
    )
    return federation if unseen is None else replace(federation, newcomers=_newcomers(federation, unseen))


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
    counts = new.problem.class_counts.tolist()
    return tuple(
        Entity(code, "adapted", f"{name}, adapted", samples=sum(held), class_counts=tuple(held))
        for code, (name, held) in enumerate(
            zip(new.problem.clients, counts, strict=True), start=first_adapted_code(federation)
        )
    )


def entities(federation: Federation) -> tuple[Entity, ...]:
    """List the rows and columns of the accuracy matrix: global, clients, further test sets, class sets."""
    tested = sum((space.test.counts for space in federation.label_spaces), federation.test.counts)
    listed = [Entity(GLOBAL, "global", "global")]
    for code, test_set in enumerate(federation.test_sets, start=1):
        if test_set.kind == "client":
            counts = tuple(federation.problem.class_counts[code - 1].tolist())
            samples = sum(counts)
        else:
            counts, samples = None, int(tested[code - 1])
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
