"""The sdist and the wheel: what they hold, and what they say of themselves."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import lit_loader
from tests.test_project_files import PROJECT

ROOT = Path(__file__).parents[1]
NAME = f"lit_loader-{lit_loader.__version__}"
IN_SDIST = (
    *("benchmarks", "conf", "docs", "examples", "lit_loader", "tests"),
    *(".ci", ".github", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "noxfile.py", "pyproject.toml"),
)
CACHES = {"__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def files_below(*names: str) -> dict[str, Path]:
    """Return the files of the tree by their path below it; links are not followed."""
    found = {}
    for name in names:
        if (ROOT / name).is_file():
            found[name] = ROOT / name
        for folder, folders, files in os.walk(ROOT / name):
            folders[:] = [each for each in folders if each not in CACHES]
            found |= {Path(folder, file).relative_to(ROOT).as_posix(): Path(folder, file) for file in files}
    return found


@pytest.fixture(scope="module")
def sdist(distributions):
    """The sdist, open."""
    (path,) = distributions.glob("*.tar.gz")
    assert path.name == f"{NAME}.tar.gz"
    with tarfile.open(path) as file:
        yield file


@pytest.fixture(scope="module")
def wheel(distributions):
    """The wheel that was built from the sdist, open."""
    (path,) = distributions.glob("*.whl")
    assert path.name == f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(path) as file:
        yield file


@pytest.fixture
def metadata(wheel):
    return message_from_string(wheel.read(f"{NAME}.dist-info/METADATA").decode())


@pytest.mark.soak
def test_the_sdist_holds_the_tree_and_nothing_else(sdist):
    wanted = {f"{NAME}/{name}": path for name, path in files_below(*IN_SDIST).items()}
    assert set(sdist.getnames()) - set(wanted) == {f"{NAME}/.gitignore", f"{NAME}/PKG-INFO"}
    for name, path in wanted.items():
        assert sdist.extractfile(name).read() == path.read_bytes(), name


def test_the_sdist_holds_plain_files_that_only_their_owner_writes(sdist):
    for each in sdist.getmembers():
        assert each.isreg(), each.name
        assert each.mode & 0o022 == 0, each.name


def test_the_wheel_holds_the_package_with_the_configs_and_nothing_else(wheel):
    wanted = files_below("lit_loader") | {f"lit_loader/{name}": path for name, path in files_below("conf").items()}
    assert {"lit_loader/py.typed", "lit_loader/conf/train.yaml"} < set(wanted)
    about = {
        f"{NAME}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert set(wheel.namelist()) == set(wanted) | about
    for name, path in wanted.items():
        assert wheel.read(name) == path.read_bytes(), name
    assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_is_the_same_from_the_sdist_and_from_the_tree(distributions):
    (from_sdist,), (from_tree,) = distributions.glob("*.whl"), distributions.glob("tree/*.whl")
    assert from_sdist.read_bytes() == from_tree.read_bytes()


def test_the_metadata_says_what_pyproject_says(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("lit-loader", lit_loader.__version__)
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(PROJECT["requires-python"])
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    required = {Requirement(each) for each in metadata.get_all("Requires-Dist")}
    assert {each for each in required if each.marker is None} == set(map(Requirement, PROJECT["dependencies"]))
    for extra, wanted in PROJECT["optional-dependencies"].items():
        own = {each.name for each in required if each.marker and each.marker.evaluate({"extra": extra})}
        assert {Requirement(each).name for each in wanted} - {"lit-loader"} <= own, extra
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


def test_the_wheel_installs_the_program(wheel):
    text = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert text.split() == ["[console_scripts]", "lit-loader", "=", "lit_loader.app.commands:main"]


def test_the_newest_version_of_the_changelog_is_this_one():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [each for each in headings if each != "Unreleased"]
    assert versions[0] == lit_loader.__version__
