"""The README's code runs and its commands exist."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from lit_loader.configs import validate
from lit_loader.datasets import VocSource, draw_shapes
from lit_loader.formats import read_annotations, readers
from tests.examples.forked_scripts import ForkedScripts

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(?!# my_)(.*?)```", README, re.DOTALL)  # a user's own modules are no scripts
COMMANDS = re.findall(r"^(\S+) examples/train\.py ([^#\n]*)", README, re.MULTILINE)
YAML = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
SMALLER = {
    "ShapesSource()": "ShapesSource(num_images={'train': 40, 'val': 20, 'test': 20}, class_shares=(0.6, 0.3, 0.1))",
    "max_epochs=4": "fast_dev_run=True, accelerator='cpu'",
    "batch_size=16": "batch_size=4",
}


@pytest.fixture(scope="module")
def scripts():
    """Forks with third-party packages imported, and without lit_loader."""
    found = ForkedScripts("lightning.pytorch", "torchmetrics", "torchvision.transforms.v2")
    yield found
    found.close()


@pytest.mark.parametrize("code", PYTHON, ids=["lightning", "one import", "uint8", "bad samples", "resuming"])
def test_the_python_examples_run(code, scripts, tmp_path):
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    (tmp_path / "example.py").write_text(code)
    done = scripts.run(tmp_path / "example.py", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_first_example_is_short():
    assert len(PYTHON[0].strip().splitlines()) <= 14


def test_the_yaml_is_yaml():
    for text in YAML:
        assert yaml.safe_load(text).keys() & {"defaults", "_target_"}


def test_the_xml_is_the_unified_format(tmp_path):
    (xml,) = re.findall(r"```xml\n(.*?)```", README, re.DOTALL)
    for folder in ("Annotations", "JPEGImages"):
        (tmp_path / folder).mkdir()
    (tmp_path / "Annotations" / "portrait.xml").write_text(xml)
    (tmp_path / "JPEGImages" / "portrait.jpg").touch()
    table = read_annotations("voc", tmp_path, use_cache=False, progress=False)
    assert table.keypoint_names == ("left eye", "right eye")
    assert table.flip_pairs == ((0, 1),)
    assert table.visibility.tolist() == [[2, 1]]
    assert table.attributes["expression"].names == ("calm",)
    assert len(table.report) == 0


def test_every_format_is_in_the_table():
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", README, re.MULTILINE)
    assert set(readers()) <= {name for row in rows for name in re.findall(r"\w+", row)}


def test_make_has_every_target_that_is_named():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (demo|test|soak|lint|bench)\b", README)) <= targets
    assert {"demo", "test", "soak", "lint", "bench"} <= targets


def test_every_file_that_is_named_exists():
    for name in re.findall(r"`((?:tests|lit_loader|conf|examples)/[\w./]*)`", README):
        assert (ROOT / name).exists(), name


def test_the_life_of_a_batch_names_what_there_is():
    """Every file, class, function and NOTE that ``lit_loader/engine/README.md`` names is in the package."""
    package = ROOT / "lit_loader"
    text = (package / "engine" / "README.md").read_text()
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    names = re.findall(r"`([\w./]+)`", text)
    assert len(names) > 80
    for name in names:
        if name.endswith(".py"):
            assert any(
                (folder / name).is_file()
                for folder in (package, package / "engine", package / "shared_memory")
            )
            continue
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", source), name
    for title in re.findall(r"NOTE \[[\w ]+\]", text):
        assert f"{title}\n" in source, title


@pytest.mark.parametrize(("python", "overrides"), COMMANDS, ids=[overrides for _, overrides in COMMANDS])
def test_the_commands_compose_in_the_environment_that_make_creates(python, overrides):
    assert python == ".venv/bin/python"
    given = shlex.split(overrides)
    if "--help" not in given:
        composed(given)


def composed(overrides):
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
        cfg = compose("train", overrides=overrides)
    validate(cfg)
    return cfg


@pytest.fixture(scope="module")
def voc2012(tmp_path_factory):
    """A folder with the splits of VOC2012, which has no test.txt."""
    splits = {"train": 4, "val": 2, "test": 2}
    folder = tmp_path_factory.mktemp("voc") / "VOC2012"
    root = draw_shapes(folder, num_images=splits, class_shares=(0.5, 0.3, 0.2), progress=False)
    (root / "ImageSets/Main/test.txt").unlink()
    return root


def test_what_is_said_of_voc2012_fits_its_splits(voc2012, tmp_path):
    inline = re.findall(r"`(VocSource\(root=.*?\))`", README)
    from_commands = [given.split() for _, given in COMMANDS if "VOC2012" in given]
    assert inline
    assert from_commands
    sources = [eval(code, {"VocSource": VocSource}) for code in inline]
    sources += [instantiate(composed(given).dataset, _convert_="all") for given in from_commands]
    for source in sources:
        source = replace(source, root=str(voc2012), cache_dir=str(tmp_path), progress=False)
        source.prepare()
        assert [table.num_images for table in source.tables("train")] == [4]
