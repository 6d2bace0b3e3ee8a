"""Method files are held to the contract when they are loaded, not when a run has begun."""

from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import pytest

from fedcore.base.errors import FedLensError
from fedcore.config import Experiment
from fedcore.engine.plan import Plan, plan
from fedcore.methods import base, registry

FILE = """
from fedcore.methods import Method, method

@method
class Silent(Method):
    name = "silent"
    about = "what it does"
"""


Load = Callable[[str], list[str]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a file ``mine.py`` with this content; its methods are forgotten after the test."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry.registered()))

    def written(content: str) -> list[str]:
        file = tmp_path / "mine.py"
        file.write_text(content)
        return registry.load_file(file)

    return written


def refuse(load: Load, content: str, message: str) -> None:
    before = set(registry.registered())
    with pytest.raises(FedLensError, match=message) as caught:
        load(content)
    assert caught.value.field == "methods" and set(registry.registered()) == before


def test_a_file_without_a_presentation_says_what_is_missing(load: Load) -> None:
    refuse(load, FILE, r"about is 'what it does'; declare About\(title=.*\)$")


def test_a_file_of_1_0_may_name_its_family(load: Load) -> None:
    content = FILE.replace('"what it does"', 'About(title="Silent", family="baseline")')
    assert load(f"from fedcore.methods import About\n{content}") == ["silent"]


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("@method", '@method("silent")'),
        ("@method", "@method()"),
        ("Method):", "object):"),
        ('name = "silent"', "title = 'Silent'"),
    ],
)
def test_a_decorator_on_something_else_says_where_it_belongs(load: Load, written: str, instead: str) -> None:
    refuse(load, FILE.replace(written, instead), "@method takes no arguments and stands above")


def test_a_file_that_fails_says_why(load: Load) -> None:
    content = "from fedcore.methods import Method\nraise ValueError('no such table')\n"
    refuse(load, content, r"does not import: ValueError: no such table$")


def test_the_table_of_the_contract_says_when_each_hook_is_called() -> None:
    members = {n: v for n, v in vars(base.Method).items() if not n.startswith("_")}
    hooks = {n for n, v in members.items() if isinstance(v, (FunctionType, classmethod, property))}
    listed = str(base.__doc__)
    assert {hook for hook in hooks if f"``{hook}``" not in listed} == {
        "place",
        "repeat",
        "prediction_loss",
    }, "the helpers"


HOOKS = """
from fedcore.methods import Method, method
from fedcore.methods.baselines.zero_shot import ZeroShot

class Mixin:
    {of_base}

@method
class Misspelt(ZeroShot, Mixin):
    name = "misspelt"
    {member}
"""


@pytest.mark.parametrize(
    ("member", "of_base", "message"),
    [
        ("def lr_factor(self): return {}", "", r"use Misspelt\.lr_factor; did you mean 'lr_factors'\? \("),
        ("clients_use_globl = True", "", r"did you mean 'clients_use_global'\?"),
        ("...", "def round_logs(self, uploads): ...", r"use Mixin\.round_logs; did you mean 'round_log'\?"),
        ("def class_axes(self): ...", "", r"reads Misspelt\.class_axes as a value, but it is defined as a f"),
        ("def lr_factors(self, r): ...", "", r"calls Misspelt\.lr_factors\(self\) as a method, but it is"),
        (
            "def plan_warnings(self): ...",
            "",
            r"calls Misspelt\.plan_warnings\(cls, config, context\) as a class method \(@classmethod\), but",
        ),
        ("def zzz(self): ...", "", r"lists the hooks \(the name of a helper begins with an underscore\)$"),
    ],
)
def test_a_public_member_that_is_no_hook_or_takes_other_arguments_is_refused(
    load: Load, member: str, of_base: str, message: str
) -> None:
    refuse(load, HOOKS.format(member=member, of_base=of_base or "..."), message)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("batch_order = 'Sorted'", r"batch_order is 'Sorted'; declare one of 'shuffled', 'sorted', None$"),
        ("backbones = 'all'", r"backbones is 'all'; declare one of 'one', 'equal token widths', 'any'$"),
        (
            "shared = ('w')",
            r"shared is 'w'; declare names of parameters, e\.g\. \(\"prompt\",\) with a comma$",
        ),
        ("client_rows = 'w'", r"client_rows is 'w'; declare names of parameters"),
        ("trains = 'no'", "trains is 'no'; declare True or False$"),
        ("clients_use_global = None", "clients_use_global is None; declare True or False$"),
        ("class_axes = {'w': 0}", r"class_axes is \{'w': 0\}; declare the axis .* from the end"),
        ("class_axes = ('w',)", r"class_axes is \('w',\); declare the axis"),
        ("Config = dict", "Config is <class 'dict'>; declare a subclass of MethodConfig"),
        (
            "trains = True",
            "Config is ZeroShotConfig, which has no learning rate; derive it from MethodConfig",
        ),
        ("name = ' misspelt'", "name is ' misspelt'; declare a text without spaces around it"),
        ("about = About(title=' ')", "about.title is empty"),
        ("about = About('A', charts=DiagnosticChart('a', {}))", r"about\.charts is wrong: .* valid tuple"),
        (
            "about = About('A', prompts=['p'])",
            r"about\.prompts is wrong: .*valid dictionary \(got \['p'\]\)$",
        ),
        (
            "Config = type('C', (MethodConfig,), {'w': hyper(object(), 'w'), "
            "'__annotations__': {'w': object}})",
            r"a default of C cannot be stored: .*; take numbers, texts and lists of them$",
        ),
        (
            "Config = type('C', (MethodConfig,), {'w': Field(default_factory=lambda data: 2 * data['lr']), "
            "'__annotations__': {'w': float}})",
            r"the default of C\.w follows from other fields, which forms cannot show; give a value",
        ),
        ("about = About('A', charts=(DiagnosticChart('a', {}),))", r"about\.charts\.0 has no lines"),
        (
            "about = About('A', field_charts=(FieldChart('F', 'v', 'clas_text', 'r'),))",
            r"about\.field_charts\.0 names 'clas_text', no field of Config; did you mean 'class_text'",
        ),
        (
            "Config = type('C', (MethodConfig,), {'lr': hyper(-1.0, 'rate', ge=0), "
            "'__annotations__': {'lr': float}})",
            r"the default of C\.lr is -1\.0, which is refused: Input should be greater than or equal to 0$",
        ),
    ],
)
def test_a_declaration_with_a_wrong_value_is_refused(load: Load, member: str, message: str) -> None:
    """``batch_order = "Sorted"`` was read as shuffled, and ``trains = "no"`` as True."""
    imports = "from pydantic import Field\n"
    imports += "from fedcore.methods import About, DiagnosticChart, FieldChart, MethodConfig, hyper\n"
    refuse(load, imports + HOOKS.format(member=member, of_base="..."), message)


FITTING_HOOKS = """
from functools import wraps

from fedcore.methods import method
from fedcore.methods.baselines.fedclip import FedCLIP

def without_head(function):
    @wraps(function)
    def hook(self, params, head, x):
        return function(self, params, x)
    return hook

class Replaced(FedCLIP):
    def logits(self, params, x): ...

@method
class Fitting(Replaced):
    name = "fitting"

    @without_head
    def logits(self, params, x): ...

    @classmethod
    def lr_factors(cls): ...
"""


def test_a_hook_that_can_be_called_is_accepted_however_it_is_defined(load: Load) -> None:
    """Decorated, as a class method, or above one with other arguments, which is never called."""
    assert load(FITTING_HOOKS) == ["fitting"]


LONE_HOOKS = """
from fedcore.methods import method
from fedcore.methods.baselines.fedclip import FedCLIP

@method
class Alone(FedCLIP):
    name = "alone"

    @classmethod
    def plan_warnings(cls, config, context):
        return [f"{context.clients} clients, and a helper says {cls._helper()}"]

    @classmethod
    def _helper(cls):
        return "so"
"""


def planned(**data: object) -> Plan:
    given = {"name": "rotated-digits", "domains": ["rot0", "rot45"], "shots": 4, **data}
    return plan(Experiment(name="Hook", data=given, methods=[{"name": "alone"}], rounds=1))


def test_one_hook_alone_is_enough_to_be_heard(load: Load) -> None:
    """Warnings of a plan once needed three other members beside them, and were silent without."""
    assert load(LONE_HOOKS) == ["alone"]
    assert "FedCLIP: 2 clients, and a helper says so" in planned().warnings


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            "def plan_warnings(cls, config, context): return 'slow'",
            "plan_warnings: it returns a str; return a l",
        ),
        ("def plan_warnings(cls, config, context): return None", "plan_warnings: it returns a NoneType"),
        ("def reads(cls, config, spec): return None", "reads: it returns a NoneType; return a text"),
        (
            "def bound_to_classes(cls, config): return True",
            "bound_to_classes: it returns a bool; return a text",
        ),
        (
            "def check(cls, config, context): return False",
            "check: it returns a bool; raise FedLensError to r",
        ),
        (
            "def check(cls, config, context): return 1 / 0",
            r"check: the method 'alone' raised ZeroDivisionError",
        ),
    ],
)
def test_a_hook_of_planning_that_returns_something_else_is_named_by_its_line(
    load: Load, hook: str, message: str
) -> None:
    """A text was shown letter by letter, a refusal by False accepted, and an error had no file."""
    head = LONE_HOOKS.partition("    @classmethod")[0]
    load(f"{head}    @classmethod\n    {hook}\n")
    with pytest.raises(FedLensError, match=rf"mine\.py:\d+, in {message}"):
        planned(training_classes="base")
