"""What the documentation must name, and what it must not."""

import re
import tomllib
from pathlib import Path

import pytest

from fedcore.methods import registry
from fedcore.methods.hyperparameters import MethodConfig
from fedcore.papers.experiments import DEMO_TIME
from tests.support.method_cases import BUILT_IN
from tools.docs import cli as cli_doc
from tools.docs import experiment as experiment_doc
from tools.docs import methods as methods_doc
from tools.docs import rooms

METHOD_PAGES = methods_doc.PAGES
DOCS = METHOD_PAGES.parent
ROOT = DOCS.parent


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_has_a_page_with_its_idea_and_all_its_fields(name):
    cls = registry.get(name)
    page = METHOD_PAGES / f"{name}.md"
    assert page.is_file(), f"write {page.relative_to(ROOT)} (CONTRIBUTING.md, A method)"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {cls.about.title}\n\nName: `{name}`.\n")
    assert cls.about.summary in text
    missing = [field for field in cls.Config.model_fields if f"`{field}`" not in text]
    index = (METHOD_PAGES / "index.md").read_text(encoding="utf-8")
    if issubclass(cls.Config, MethodConfig):
        fields = cls.Config.model_fields
        inherited = MethodConfig.model_fields
        missing = [
            f
            for f in missing
            if f not in inherited or fields[f].default != inherited[f].default or f"`{f}`" not in index
        ]
    assert not missing, f"{page.name}: name {missing}; run python -m tools.docs"
    assert re.search(r"^<!-- row: [^|]+ \| [^|]+ \| [^|]+ -->$", text, re.M), (
        "its cells in the table of methods"
    )


GENERATED = [(page, methods_doc.render) for page in METHOD_PAGES.glob("*.md")] + [
    (methods_doc.README, methods_doc.readme),
    (methods_doc.NAVIGATION, methods_doc.navigation),
    (experiment_doc.PAGE, experiment_doc.render),
    (cli_doc.PAGE, cli_doc.render),
    (rooms.PICTURE, lambda _: rooms.picture()),
]


@pytest.mark.parametrize(("page", "render"), GENERATED, ids=lambda value: getattr(value, "name", ""))
def test_what_is_generated_is_what_the_code_says(page, render):
    text = page.read_text(encoding="utf-8")
    assert render(text) == text, "out of date; run python -m tools.docs"


def test_what_a_method_page_says_otherwise_is_generated_again():
    text = (METHOD_PAGES / "fedot.md").read_text(encoding="utf-8")
    assert methods_doc.render(text.replace("| `blocks` | `1` |", "| `blocks` | `2` |")) == text


def test_a_method_that_extends_another_repeats_none_of_its_rows():
    text = methods_doc.fields("fedprox-lora")
    assert "| `proximal` | `0.01` | 0 to 1000 |" in text and "| `rank` |" not in text
    also = text.splitlines()[-1]
    assert "`rank`" in also and also.endswith("as for [FedAvg (LoRA)](fedavg-lora.md).")
    assert "| `rank` |" in methods_doc.fields("fedavg-lora")


def test_the_page_of_experiment_files_names_all_fields():
    page = experiment_doc.PAGE.read_text(encoding="utf-8")
    for name, model in experiment_doc.TABLES.items():
        missing = [f for f in model.model_fields if f"`{f}`" not in page and f"[{f}]" not in page]
        assert missing == [], f"{name}: {missing}"


def test_the_page_of_the_command_line_names_all_commands():
    page = cli_doc.PAGE.read_text(encoding="utf-8")
    assert [name for name in cli_doc.commands() if f"**`fedlens {name}" not in page] == []


def test_every_test_that_the_page_names_is_there():
    root, file, named = Path(__file__).parent, None, 0
    page = (DOCS / "checks.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:[\w/]+\.py)?(?:::test_\w+)?|test_\w+)`", page):
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


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


def test_documents_link_only_to_what_is_there():
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://")):
                name, _, anchor = target.partition("#")
                page = path.parent / name if name else path
                assert page.exists(), f"{path.name}: no file at {target}"
                assert not anchor or anchor in anchors(page), f"{path.name}: no heading for {target}"


def test_the_pictures_of_the_readme_are_there():
    pictures = re.findall(r'[("]([^"(]+\.(?:png|webp))[")]', (ROOT / "README.md").read_text(encoding="utf-8"))
    assert pictures
    assert [p for p in pictures if not (ROOT / p).is_file()] == []


def test_the_picture_of_the_rooms_shows_the_layers_of_the_lint_contract():
    assert sorted(rooms.PURPOSES) == sorted(room for row in rooms.layers() for room in row)


def test_the_architecture_page_describes_every_room_and_names_only_files_that_are_there():
    page = (rooms.FOLDER / "architecture.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)(?:/|\.py)?` \|", page, re.MULTILINE)
    assert described == [room for row in rooms.layers() for room in row if rooms.PURPOSES[room]]
    root = rooms.FOLDER.parent
    for path, name in re.findall(r"`([\w/]+\.(?:py|md|toml))(?:: (\w+))?`", page):
        folders = (root, root / "fedcore", root / "fedcore" / "methods", root / "fedlens-ray")
        file = next((folder / path for folder in folders if (folder / path).is_file()), None)
        assert file, f"architecture.md: no file {path}"
        defined = re.search(rf"(def|class) {name}\b", file.read_text(encoding="utf-8"))
        assert not name or defined, f"architecture.md: {path} has no {name}"


def test_every_forbidden_arrow_of_the_architecture_page_is_in_a_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "forbidden"]
    contracts = [c for c in contracts if c["forbidden_modules"] != ["fedlens_ray"]]  # it is not a room
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    arrows: dict[str, set[str]] = {}
    for source, targets in re.findall(r"^\| `([\w.]+)` → (.*?) \|", page, re.MULTILINE):
        module = source if source == "pages" else f"fedcore.{source}"
        forbidden = {f"fedcore.{name}" for name in re.findall(r"`([\w.]+)`", targets)}
        if targets.startswith("the rest of"):  # which a contract names file by file
            files = [file.stem for name in forbidden for file in (ROOT / name.replace(".", "/")).glob("*.py")]
            forbidden = {f"fedcore.engine.{name}" for name in files if name != "__init__"}
        arrows.setdefault(module, set()).update(forbidden)
    assert len(arrows) == len(contracts), "a contract without a row, or a row without a contract"
    for module, forbidden in arrows.items():
        held = {m for c in contracts if module in c["source_modules"] for m in c["forbidden_modules"]}
        assert forbidden <= held, f"no contract of pyproject.toml keeps {module} from {forbidden - held}"


def test_pages_and_documents_give_the_demonstration_one_time():
    for page in ("tutorial.md", "embedded.md"):
        assert f"{DEMO_TIME}" in (DOCS / page).read_text(encoding="utf-8"), page
