"""The Python blocks of README.md and docs/ run, and print the output that their page shows."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.support.documented_sets import make_documented_sets
from tests.support.documents import README, TEXTS, blocks
from tests.support.forked_scripts import ForkedScripts

MEASURED = {"speed/monitor 2"}  # their output depends on the machine


def documented_scripts():
    """Yield the code of each block with the output that its page shows, and its page and number."""
    for page, text in TEXTS.items():
        for number, code in enumerate(blocks(text, "python"), 1):
            # Modules of a user begin with a comment that names them; the test of their page imports them.
            if not code.startswith("# my_"):
                name = f"{page} {number}"
                yield pytest.param(code, None if name in MEASURED else documented_output(code, text), id=name)


def documented_output(code, page):
    """Return a pattern of the output that follows a block of code on its page, or None; ... matches any lines."""
    output = re.match(r"```\n+```text\n(.*?)^```$", page.partition(code)[2], re.DOTALL | re.MULTILINE)
    if output is None:
        return None
    lines = output[1].splitlines()
    return "".join(r"(?:.*\n)*?" if line == "..." else rf"{re.escape(line)} *\n" for line in lines)


LANGUAGES = {"python", "bash", "yaml", "xml", "text"}  # `text` is for output and for trees of files
# Smaller data and shorter training for the tests.
SMALLER = {
    "draw_shapes()": "draw_shapes(num_images={'train': 8, 'val': 4, 'test': 4}, class_shares=(0.6, 0.3, 0.1))",
    "ShapesSource()": "ShapesSource(num_images={'train': 8}, class_shares=(0.6, 0.3, 0.1))",
    '"train": 300, "val": 60, "test": 60': '"train": 60, "val": 20, "test": 20',
    'weights="DEFAULT"': "weights=None",  # they would be downloaded
    "max_steps=100": "fast_dev_run=True, accelerator='cpu'",
}


@pytest.fixture(scope="module")
def scripts():
    """Forks of an interpreter with the packages that most examples import."""
    forked_scripts = ForkedScripts("lightning.pytorch", "matplotlib.pyplot", "torchmetrics", "torchvision")
    yield forked_scripts
    forked_scripts.close()


@pytest.mark.parametrize(("code", "output"), list(documented_scripts()))
def test_python_examples_run(code, output, scripts, tmp_path):
    make_documented_sets(code, tmp_path)
    # Examples of the README import lit_loader themselves; to save time, others find it imported.
    modules = () if code in README else ("lit_loader.callbacks", "lit_loader.recipes")
    is_shortened = any(long in code for long in SMALLER)
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    (tmp_path / "example.py").write_text(code)
    result = scripts.run(tmp_path / "example.py", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)}, modules=modules)
    assert result.returncode == 0, result.stderr
    assert result.stdout
    if output is not None and not is_shortened:
        printed = "".join(f"{line}\n" for line in result.stdout.splitlines() if not line.startswith("Drawing "))
        assert re.fullmatch(output, printed), printed


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_has_a_language_that_tests_know(page):
    opened = Counter(re.findall(r"^```([\w{}-]*)", TEXTS[page], re.MULTILINE))
    opened = Counter({name: count for name, count in opened.items() if not name.startswith("{")})
    assert set(opened) <= LANGUAGES | {""}
