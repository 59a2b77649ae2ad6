"""Contents and metadata of the sdist and the wheel."""

from __future__ import annotations

import itertools
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
    *(".ci", ".github", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "PROJECT.md"),
    *("README.md", "SECURITY.md", "noxfile.py", "pyproject.toml"),
)
CACHES = {"__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def files_below(*names: str) -> dict[str, Path]:
    """Return the files of the tree by their path below it; links are not followed."""
    paths = [ROOT / name for name in names if (ROOT / name).is_file()]
    for folder, folder_names, file_names in itertools.chain(*(os.walk(ROOT / name) for name in names)):
        folder_names[:] = set(folder_names) - CACHES  # os.walk enters only these
        paths += [Path(folder, name) for name in file_names]
    return {path.relative_to(ROOT).as_posix(): path for path in paths}


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
def test_sdist_holds_exactly_the_tree(sdist):
    expected_files = {f"{NAME}/{name}": path for name, path in files_below(*IN_SDIST).items()}
    assert set(sdist.getnames()) - set(expected_files) == {f"{NAME}/.gitignore", f"{NAME}/PKG-INFO"}
    for name, path in expected_files.items():
        assert sdist.extractfile(name).read() == path.read_bytes(), name


def test_sdist_holds_plain_files_that_only_their_owner_may_write(sdist):
    for member in sdist.getmembers():
        assert member.isreg(), member.name
        assert member.mode & 0o022 == 0, member.name


def test_wheel_holds_exactly_the_package_and_the_configs(wheel):
    configs = {f"lit_loader/{name}": path for name, path in files_below("conf").items()}
    expected_files = files_below("lit_loader") | configs
    assert {"lit_loader/py.typed", "lit_loader/conf/train.yaml"} < set(expected_files)
    metadata_names = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    assert set(wheel.namelist()) == {*expected_files, *(f"{NAME}.dist-info/{name}" for name in metadata_names)}
    for name, path in expected_files.items():
        assert wheel.read(name) == path.read_bytes(), name
    assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_wheels_from_the_sdist_and_from_the_tree_are_identical(distributions):
    (from_sdist,) = distributions.glob("*.whl")
    (from_tree,) = distributions.glob("tree/*.whl")
    assert from_sdist.read_bytes() == from_tree.read_bytes()


def test_metadata_repeats_pyproject(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("lit-loader", lit_loader.__version__)
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(PROJECT["requires-python"])
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    requirements = set(map(Requirement, metadata.get_all("Requires-Dist")))
    base_requirements = {requirement for requirement in requirements if requirement.marker is None}
    assert base_requirements == set(map(Requirement, PROJECT["dependencies"]))
    for extra, texts in PROJECT["optional-dependencies"].items():
        names = {item.name for item in requirements if item.marker and item.marker.evaluate({"extra": extra})}
        assert {Requirement(text).name for text in texts} - {"lit-loader"} <= names, extra


def test_project_page_has_paragraphs_of_the_readme_and_no_links_into_the_repository(metadata):
    page = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert page == (ROOT / "PROJECT.md").read_text()
    assert re.findall(r"\]\((?!https?:)", page) == []
    shared = page.partition("\n\n## Install\n")[0].split("\n\n")
    assert set(shared) <= set((ROOT / "README.md").read_text().split("\n\n"))


def test_wheel_installs_the_program(wheel):
    text = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert text.split() == ["[console_scripts]", "lit-loader", "=", "lit_loader.app.commands:main"]


def test_newest_version_of_the_changelog_is_the_version_of_the_package():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [heading for heading in headings if heading != "Unreleased"]
    assert versions[0] == lit_loader.__version__
