"""CONTRIBUTING, SECURITY, the citation and the templates agree with the project."""

from __future__ import annotations

import re

import pytest
import yaml

import lit_loader
from tests.support.documents import ALL, ROOT
from tests.test_layers import LAYERS
from tests.test_project_files import PROJECT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
INPUTS = {"input", "textarea", "dropdown", "checkboxes"}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_files_and_links_of_root_pages_exist(name):
    text = (ROOT / name).read_text()
    for path in re.findall(r"`((?:tests|lit_loader|examples|benchmarks|docs)/[\w./-]*|[A-Z]+\.\w+)`", text):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / link).exists(), link


def test_contributing_lists_targets_of_make_and_packages():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", CONTRIBUTING, re.MULTILINE)) == targets - {"clean", "parts"}
    order = re.search(r"^`errors`.*?`app`$", CONTRIBUTING, re.MULTILINE | re.DOTALL)[0]
    layers = [re.findall(r"`(\w+)`", layer) for layer in order.split("→")]
    assert layers == [[name for name in layer if name != "__version__"] for layer in LAYERS]


def test_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # those that the schema requires
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["version"] == lit_loader.__version__
    assert citation["license"] == PROJECT["license"]
    assert all("name" in author for author in citation["authors"])


def test_wheel_in_commands_has_the_version_of_the_package():
    assert set(re.findall(r"lit_loader-([\w.]+)-py3-none-any\.whl", ALL)) == {lit_loader.__version__}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_valid(path):
    form = yaml.safe_load(path.read_text())
    assert set(form) <= {"name", "description", "title", "labels", "assignees", "body"}
    assert form["name"]
    assert form["description"]
    fields = [item for item in form["body"] if item["type"] != "markdown"]
    assert {field["type"] for field in fields} <= INPUTS
    ids = [field["id"] for field in fields]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_issue_forms_ask_for_the_reports_of_commands():
    texts = {path.stem: path.read_text() for path in FORMS}
    assert set(texts) == {"bug", "slow-run", "wrong-data"}
    assert "lit-loader check" in texts["wrong-data"]
    assert "lit-loader profile" in texts["slow-run"]
    assert all("lit-loader --version" in text for text in texts.values())
