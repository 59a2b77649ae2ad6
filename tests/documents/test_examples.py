"""The Python blocks of README.md and docs/ run, and print the output that their page shows."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec

import pytest

from tests.support.documented_sets import make_documented_sets
from tests.support.documents import README, TEXTS
from tests.support.forked_scripts import ForkedScripts

# Pages whose outputs depend on the machine or on the size of the set.
VARYING = {"speed/monitor", "start/txt-lists"}
# The blocks of Python, each with the block of its output if one follows. A block that begins with a comment
# `# my_NAME.py` is a module of a user, which the test of its page imports.
SCRIPTS = [
    pytest.param(code, "" if page in VARYING else output, id=f"{page} {number}")
    for page, text in TEXTS.items()
    for number, (code, output) in enumerate(
        re.findall(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE), 1
    )
    if not code.startswith("# my_")
]
LANGUAGES = {"python", "bash", "yaml", "xml", "text"}  # `text` is for output and for trees of files
# Smaller data and shorter training for the tests.
SMALLER = {
    "draw_shapes()": "draw_shapes(num_images={'train': 8, 'val': 4, 'test': 4}, class_shares=(0.6, 0.3, 0.1))",
    "ShapesSource()": "ShapesSource(num_images={'train': 8}, class_shares=(0.6, 0.3, 0.1))",
    'weights="DEFAULT"': "weights=None",  # they would be downloaded
    "max_steps=100": "fast_dev_run=True, accelerator='cpu'",
}


@pytest.fixture(scope="module")
def scripts():
    """Forks of an interpreter with the packages that most examples import."""
    # pyarrow imports pandas where it is installed, when the first annotation table is written.
    pandas = ["pandas"] if find_spec("pandas") else []
    forked_scripts = ForkedScripts(
        "lightning.pytorch", "matplotlib.pyplot", "rich.table", "torchmetrics", "torchvision", *pandas
    )
    yield forked_scripts
    forked_scripts.close()


@pytest.mark.parametrize(("code", "output"), SCRIPTS)
def test_python_examples_print_their_output(code, output, scripts, tmp_path):
    make_documented_sets(code, tmp_path)
    # Examples of the README import lit_loader themselves; to save time, others find it imported.
    modules = () if code in README else ("lit_loader.callbacks", "lit_loader.recipes")
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    (tmp_path / "example.py").write_text(code)
    result = scripts.run(tmp_path / "example.py", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)}, modules=modules)
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert not output or result.stdout.strip() == output.strip()


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_has_a_language_that_tests_know(page):
    opened = Counter(re.findall(r"^```([\w{}-]*)", TEXTS[page], re.MULTILINE))
    opened = Counter({name: count for name, count in opened.items() if not name.startswith("{")})
    assert set(opened) <= LANGUAGES | {""}
