"""The pages on architecture name files, functions and packages that exist."""

from __future__ import annotations

import re

from tests.support.documents import PAGES, ROOT
from tests.test_layers import LAYERS

PACKAGE = ROOT / "lit_loader"
LIFE = PAGES["architecture/life-of-a-batch"]


def test_every_name_in_the_life_of_a_batch_exists():
    words = {word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    names = re.findall(r"`([\w./]+)`", LIFE)
    assert len(names) > 80
    for name in names:
        if name.endswith(".py"):
            folders = (ROOT, PACKAGE, PACKAGE / "engine", PACKAGE / "memory")
            assert any((folder / name).is_file() for folder in folders), name
            continue
        if name.endswith("/"):
            assert (ROOT / name).is_dir(), name
            continue
        assert words.issuperset(name.split(".")), name


def test_every_note_that_the_pages_cite_exists():
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    titles = re.findall(r"NOTE \[[\w ]+\]", "".join(PAGES[page] for page in PAGES if page.startswith("architecture/")))
    assert titles
    for title in titles:
        assert f"{title}\n" in source, title


def test_table_of_packages_has_every_layer():
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGES["architecture/packages"], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(named) == sorted({*(name for names in LAYERS for name in names), "conf"} - {"__version__"})
