"""What the documentation must name, and what it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedcore.methods import registry
from fedcore.methods.hyperparameters import MethodConfig
from tools.docs import experiment as experiment_doc
from tools.docs import methods as methods_doc
from tools.docs import rooms

PAGE = methods_doc.PAGE.read_text(encoding="utf-8")
BUILT_IN = [
    name for name, cls in registry.load_all().items() if cls.__module__.startswith("fedcore.methods.")
]


def section(title: str) -> str:
    """From a heading of the second level to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"docs/methods.md has no section '## {title}'; write one (CONTRIBUTING.md, A method)"
    return found[1]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_has_a_section_with_its_idea_and_all_its_fields(name):
    cls = registry.get(name)
    text = section(cls.about.title)
    assert f"`{name}`" in text
    assert cls.about.summary in text
    missing = [field for field in cls.Config.model_fields if f"`{field}`" not in text]
    if issubclass(cls.Config, MethodConfig):
        common = section("Fields of every trained method")
        own = cls.Config.model_fields
        inherited = MethodConfig.model_fields
        missing = [
            f
            for f in missing
            if f not in inherited or own[f].default != inherited[f].default or f"`{f}`" not in common
        ]
    assert not missing, f"docs/methods.md, {name}: name {missing}; run python -m tools.docs"


def test_the_page_says_what_the_code_says():
    assert methods_doc.render(PAGE) == PAGE, "out of date; run python -m tools.docs"
    assert methods_doc.render(PAGE.replace("| `blocks` | `1` |", "| `blocks` | `2` |")) == PAGE


def test_the_page_of_experiment_files_says_what_the_models_say():
    page = experiment_doc.PAGE.read_text(encoding="utf-8")
    assert experiment_doc.render(page) == page, "out of date; run python -m tools.docs"
    for name, model in experiment_doc.TABLES.items():
        missing = [f for f in model.model_fields if f"`{f}`" not in page and f"[{f}]" not in page]
        assert missing == [], f"{name}: {missing}"


def test_every_test_that_the_page_names_is_there():
    root, file, named = Path(__file__).parent, None, 0
    for name in re.findall(r"`((?:[\w/]+\.py)?(?:::test_\w+)?|test_\w+)`", section("What is checked")):
        path, _, test = name.partition("::")
        if path.endswith(".py"):
            file = next(root.rglob(Path(path).name)) if "/" not in path else root / path
            assert file.is_file(), path
        wanted = test or (path if path.startswith("test_") and not path.endswith(".py") else "")
        if wanted:
            assert f"def {wanted}(" in file.read_text(encoding="utf-8"), f"{file.name} has no {wanted}"
            named += 1
    assert named > 20


def test_a_marker_without_its_method_is_noticed():
    with pytest.raises(registry.FedLensError, match="unknown method 'fedto'; did you mean 'fedot'"):
        methods_doc.render("<!-- fields: fedto -->\n<!-- end -->")


def test_documents_link_only_to_what_is_there():
    for path in methods_doc.PAGE.parent.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-")
            for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith("#"):
                assert target[1:] in headings, f"{path.name}: no heading for {target}"
            elif not target.startswith(("http://", "https://")):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path.name}: no file at {target}"


def test_the_pictures_of_the_readme_are_there():
    root = Path(__file__).resolve().parents[1]
    pictures = re.findall(r'[("]([^"(]+\.(?:png|webp))[")]', (root / "README.md").read_text(encoding="utf-8"))
    assert pictures
    assert [p for p in pictures if not (root / p).is_file()] == []


def test_the_picture_of_the_rooms_shows_the_layers_of_the_lint_contract():
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(), (
        "out of date; run python -m tools.docs"
    )
    assert sorted(rooms.PURPOSES) == sorted(room for row in rooms.layers() for room in row)


def test_the_architecture_page_describes_every_room_and_names_only_files_that_are_there():
    page = (rooms.FOLDER / "architecture.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)(?:/|\.py)?` \|", page, re.MULTILINE)
    assert described == [room for row in rooms.layers() for room in row if rooms.PURPOSES[room]]
    root = rooms.FOLDER.parent
    for path in re.findall(r"`([\w/]+\.(?:py|md|toml))(?:: \w+)?`", page):
        folders = (root, root / "fedcore", root / "fedcore" / "methods")
        assert any((folder / path).is_file() for folder in folders), f"architecture.md: no file {path}"
