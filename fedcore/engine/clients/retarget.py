"""Trained models asked about other class names: which methods can answer, and the state that does."""

from __future__ import annotations

from dataclasses import replace

from fedcore.lazy import torch
from fedcore.methods.base import STATE_PARTS, Method, overrides


def reason_without_value(method: Method) -> str:
    """Return why a trained model has no value on new classes; empty if it has one.

    A method of the user's own may have forgotten ``class_axes``. Where as many classes are new as were
    trained on, its scores would then have the right shape and mean nothing.
    """
    if reason := type(method).bound_to_classes(method.config):
        return reason
    if overrides(type(method), "retarget"):
        return ""
    undeclared = sorted(set(entries_by_class(method)) - set(method.class_axes()))
    if not undeclared:
        return ""
    names = ", ".join(f"'{name}'" for name in undeclared)
    return f"its parameter {names} depends on the number of classes; name it in class_axes"


def entries_by_class(method: Method) -> tuple[str, ...]:
    """Return the parameters that have an entry for each class: those whose shape one class fewer changes."""
    problem = method.problem
    fewer = replace(problem, classes=problem.classes[:-1], class_counts=problem.class_counts[:, :-1])
    with torch.no_grad():
        states = [m.init(m.problem.generator) for m in (method, type(method)(method.config, fewer))]
    found = []
    for part in STATE_PARTS:
        one, other = (getattr(state, part) for state in states)
        found += [name for name, value in one.items() if value.shape != other[name].shape]
    return tuple(dict.fromkeys(found))
