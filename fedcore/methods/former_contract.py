"""Names of the method contract of FedLens 0.1, for errors that say what to change in a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_ABOUT = "part of about = About(title=..., source=..., summary=...)"
FORMER_MEMBERS = {
    "title": _ABOUT,
    "source": _ABOUT,
    "family": _ABOUT,
    "charts": _ABOUT,
    "matrices": _ABOUT,
    "notes": "plan_warnings",
    "planned": "freeze_config",
    "caveat": "result_caveat",
    "remarks": "round_log",
    "explained": "gradcam_scores",
    "prepare": "round_constants",
}
"""Members of method classes -> their names now; the engine would ignore the old ones."""

_NOW_METHODS = ("predicts_in_batches", "drawn_texts")
_FUNCTIONS = ("cosine_logits", "cross_entropy", "masked_mean", "weighted_mean")
_IMPORTS = {
    **{("fedcore.methods.base", name): f"from fedcore.methods import {name}" for name in _FUNCTIONS},
    ("fedcore.methods.base", "Setting"): "from fedcore.methods import RunContext",
    **{
        ("fedcore.methods.charts", name): f"from fedcore.methods import {name}"
        for name in ("DiagnosticChart", "GRADIENT_CONFLICT", "MatrixChart")
    },
}
_MODULES = {
    **{
        f"fedcore.methods.{name}": f"fedcore.methods.baselines.{name}"
        for name in ("clip_fc", "fedavg_lora", "fedclip", "zero_shot")
    },
    "fedcore.methods.coop": "fedcore.methods.baselines.prompts.coop",
    "fedcore.methods.promptfl": "fedcore.methods.baselines.prompts.promptfl",
}
_ATTRIBUTES = {"spread": "repeat", "taken": "rounds_trained", "common": "global_model"}
_KEYWORDS = {
    "taken": "rounds_trained",
    "common": "global_model",
    "unasked": "default_visible",
    "reach": "color_range",
}


def changes(source: str) -> list[str]:
    """List the former names in a method file in its order, each with its line and its name now.

    Only names are compared. A file that loads may use these names for purposes of its own, so this is meant
    for files that do not load.

    Raises:
        SyntaxError: when the source is no Python.
    """
    found = sorted({change for node in ast.walk(ast.parse(source)) for change in _of_node(node)})
    return [f"line {line}: {before} is now {now}" for line, before, now in found]


def _of_node(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    if isinstance(node, ast.ImportFrom):
        if node.module in _MODULES:
            yield node.lineno, node.module, _MODULES[node.module]
        for alias in node.names:
            key = (node.module or "", alias.name)
            if key in _IMPORTS:
                yield node.lineno, f"from {node.module} import {alias.name}", _IMPORTS[key]
    elif isinstance(node, ast.ClassDef) and not node.name.endswith("Config"):
        for statement in node.body:
            yield from _of_member(statement)
    elif isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
        yield node.lineno, f".{node.attr}", f".{_ATTRIBUTES[node.attr]}"
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "zero_shot":
            yield node.lineno, "backbone.zero_shot(classes, template)", "problem.class_features"
        for keyword in node.keywords:
            if keyword.arg in _KEYWORDS:
                yield keyword.value.lineno, f"{keyword.arg}=", f"{_KEYWORDS[keyword.arg]}="


def _of_member(statement: ast.stmt) -> Iterator[tuple[int, str, str]]:
    """Yield the change of one statement in the body of a class."""
    if isinstance(statement, ast.FunctionDef):
        name = statement.name
        is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in statement.decorator_list)
        if name in FORMER_MEMBERS:
            yield statement.lineno, name, FORMER_MEMBERS[name]
        elif name in _NOW_METHODS and is_property:
            yield statement.lineno, f"the property {name}", f"the method {name}()"
        return
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    for target in targets:
        name = target.id if isinstance(target, ast.Name) else ""
        if name in FORMER_MEMBERS:
            yield statement.lineno, name, FORMER_MEMBERS[name]
        elif name == "about" and not isinstance(getattr(statement, "value", None), ast.Call):
            yield statement.lineno, "about = '...'", "about = About(title=..., source=..., summary='...')"
