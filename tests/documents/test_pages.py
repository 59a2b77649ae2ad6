"""Pages of docs/ agree with the code that they describe, and their files and links exist."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.documents import ALL, DOCS, README, ROOT, TEXTS, blocks


def test_yaml_examples_are_configs():
    for text in blocks(ALL, "yaml"):
        assert yaml.safe_load(text).keys() & {"defaults", "_target_"}


@pytest.mark.parametrize("page", TEXTS)
def test_every_file_and_link_exists(page):
    text = TEXTS[page]
    folder = ROOT if page == "README" else (DOCS / page).parent
    for name in re.findall(r"`((?:tests|lit_loader|conf|examples|benchmarks)/[\w./]*)`", text):
        assert (ROOT / name).exists(), name
    for module in re.findall(r"python -m (benchmarks\.\w+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        if "tutorials/" not in link:  # written by the build, which checks them
            assert (folder / link).exists(), link


@pytest.mark.parametrize("page", [page for page in TEXTS if page.endswith("/index") and page != "index"])
def test_readme_links_to_every_section(page):
    assert f"](docs/{page}.md)" in README
