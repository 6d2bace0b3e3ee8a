"""Cross-class federations, in which each client predicts among its own classes only, and their cohorts.

A label space decides which names are encoded and scored. Each client is therefore a cohort of one, whose
method is made for a ``Problem`` with the client's classes and the prompt of its data set. What clients share
must not depend on classes; ``cohorts_of_one`` checks this for methods that do not declare it.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedcore.clip.backbone import Backbone
from fedcore.data.images import ImageSet
from fedcore.data.training_classes import CrossClass
from fedcore.engine.clients.cohorts import Cohort, differing_start
from fedcore.engine.clients.generalisation import entries_by_class
from fedcore.engine.clients.hooks import make
from fedcore.errors import FedLensError
from fedcore.federation import Federation, LabelSpace, Pool, Problem, Rows, TestSet
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import Method
from fedcore.methods.hyperparameters import MethodConfig


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
    train = Rows.of(assignment.train)
    problem = Problem(
        backbone=backbone,
        classes=dealt.classes,
        template=images.template,
        clients=assignment.clients,
        domains=images.domains,
        client_domain=torch.as_tensor(assignment.client_domain),
        samples=train.counts,
        class_counts=torch.as_tensor(assignment.counts),
        seed=seed,
        descriptions={},
    )
    whole = Federation(
        Pool(values, _labels(images, dealt.classes, backbone), backbone.device, backbone.dtype),
        train,
        Rows.none(len(domains)),
        Rows.none(len(sets)),
        tuple(sets),
        problem,
    )
    spaces = []
    for half in ("base", "new"):
        for place, of_part in enumerate(dealt.halves):
            names, rows = (
                (of_part.base, of_part.base_test) if half == "base" else (of_part.new, of_part.new_test)
            )
            column = len(domains) + place + (len(dealt.halves) if half == "new" else 0)
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
    """Return each client with the method that is made for its classes."""
    cohorts = []
    for client in range(len(whole.problem.clients)):
        federation = federation_of_client(whole, images, dealt, client)
        cohorts.append(Cohort(make(cls, config, federation.problem), federation, range(client, client + 1)))
    _check_shared(cohorts)
    return tuple(cohorts)


def _check_shared(cohorts: Sequence[Cohort]) -> None:
    """Refuse a method whose parameters have entries for classes, or start from values that depend on them."""
    most = max(cohorts, key=lambda c: len(c.federation.problem.classes))
    found = entries_by_class(most.method) if len(most.federation.problem.classes) > 1 else ()
    found = found or tuple(name for _, name, *_ in differing_start(cohorts[0], cohorts[-1]))
    if found:
        raise FedLensError(
            f"{type(most.method).about.title} cannot train clients that each predict among their own classes "
            f"only: its parameter '{found[0]}' depends on the classes; leave it out, or choose another "
            "protocol",
            "method.name",
        )


def _labels(images: ImageSet, listed: Sequence[str], backbone: Backbone) -> Tensor:
    """Return each sample's label as an index into some of the joined images' classes, -1 for others."""
    return torch.as_tensor(images.labels_among(listed), dtype=torch.int64).to(backbone.device)


def _listed(images: ImageSet, place: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return classes of one data set by their names in the joined images."""
    return tuple(f"{images.domains[place]}: {name}" for name in names)
