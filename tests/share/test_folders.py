"""A bundle is checked with the folders of several data sets, and each folder belongs to one of them."""

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.config import expand, parse
from fedcore.engine.plan import plan
from fedcore.share.archive import open_bundle
from fedcore.share.rerun import trainable
from fedcore.share.samples import read_folders
from fedcore.share.verify import verify_numbers
from fedcore.store import Store
from tests.support import command_line
from tests.support.jobs import execute_next
from tests.support.web.pictures import image_folder


def two_folders(base: Path) -> list[Path]:
    folders = [base / "pets", base / "engines"]
    for folder in folders:
        image_folder(folder)
    return folders


def an_experiment(pets: Path, engines: Path) -> dict[str, object]:
    return {
        "name": "two folders",
        "methods": [{"name": "zero-shot"}],
        "rounds": 0,
        "seeds": [1],
        "data": {"name": "folder", "root": str(pets)},
        "partition": {"kind": "iid", "clients": 2},
        "transfer": [{"name": "folder", "root": str(engines)}],
    }


def test_images_of_several_folders_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The authors' folders had the names by which the reader gives their copies."""
    db, file = tmp_path / "runs.db", tmp_path / "bundle.zip"
    experiment = parse(an_experiment(*two_folders(tmp_path / "theirs")))
    Store(db).prepare()
    Store(db).experiments.create(experiment, plan(experiment).runs)
    assert execute_next(db) == "done"
    assert command_line.run("bundle", 1, "-o", file, "--db", db) == 0
    pets = shutil.copytree(tmp_path / "theirs" / "pets", tmp_path / "a")
    engines = shutil.copytree(tmp_path / "theirs" / "engines", tmp_path / "b")
    capsys.readouterr()

    assert command_line.run("verify", file) == 0
    said = capsys.readouterr().out
    assert "images of engines were not compared: give --data engines=FOLDER" in said
    assert "images of pets were not compared" in said
    assert command_line.run("verify", file, "--data", pets) == 0, "of the data that clients train on"
    said = capsys.readouterr().out
    assert "(1 file)" in said and "images of engines were not compared" in said
    both = ("--data", f"pets={pets}", "--data", f"engines={engines}")
    assert command_line.run("verify", file, *both) == 0
    said = capsys.readouterr().out
    assert "(2 files)" in said and "not compared" not in said

    for path in engines.rglob("*.png"):
        Image.new("RGB", (8, 8), (1, 2, 3)).save(path)
    assert command_line.run("verify", file, *both) == 1
    assert "! splits/2.csv: " in capsys.readouterr().out

    content, _ = verify_numbers(open_bundle(file))
    (part,) = trainable(content.recipe, {}, [f"engines={engines}", str(pets)])
    assert part.config.transfer[0].root == part.runs[0].config.transfer[0].root == str(engines)
    with pytest.raises(FedLensError, match=r"name the folders of its data: --data engines=FOLDER$"):
        trainable(content.recipe, {}, [str(pets)])


def test_a_folder_that_belongs_to_no_certain_data_set_is_refused(tmp_path: Path) -> None:
    pets, engines = two_folders(tmp_path)
    one, other = (expand(parse(an_experiment(*pair)))[0] for pair in ((pets, engines), (engines, pets)))
    embedded = one.model_copy(
        update={"data": parse({"name": "a", "methods": [{"name": "zero-shot"}]}).data, "transfer": ()}
    )
    names = "pets, engines"
    cases = (
        ([one], [f"cars={pets}"], f"no data set of this bundle is called 'cars'; there are: {names}"),
        ([one], [f"pets={pets}", str(engines)], "two folders are given for pets; leave out one"),
        ([one], ["pets=nowhere"], "there is no folder nowhere; give that of pets"),
        (
            [one, other],
            [str(pets)],
            f"name the data set of {pets}, as in pets={pets}; there are: pets, engines",
        ),
        ([embedded], [str(pets)], f"leave out {pets}: FedLens has the images of this bundle itself"),
    )
    for runs, given, said in cases:
        with pytest.raises(FedLensError, match=f"{re.escape(said)}$"):
            read_folders(runs, given)


def test_names_and_folders_may_have_equals_signs(tmp_path: Path) -> None:
    pets, engines = (tmp_path / name for name in ("alpha=0.1", "a=b"))
    run = expand(parse(an_experiment(pets, engines)))[0]
    for folder in (pets, engines):
        folder.mkdir()
    assert read_folders([run], [str(pets)]) == {"alpha=0.1": str(pets)}
    given = [f"alpha=0.1={pets}", f"a=b={engines}"]
    assert read_folders([run], given) == {"alpha=0.1": str(pets), "a=b": str(engines)}
