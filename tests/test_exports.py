"""Exports of modules and of the package; importing the package starts nothing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import lit_loader
from tests.support.extras import needs

PACKAGE = Path(lit_loader.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__main__"
)


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_names_exist(name):
    module = importlib.import_module(name)
    if not hasattr(module, "__path__") and not hasattr(module, "__all__"):
        return  # a private module, imported by its own package or by lit_loader alone
    exported = module.__all__
    assert list(exported) == sorted(exported)
    for item in exported:
        assert hasattr(module, item)


def test_dir_lists_the_exports_and_other_names_are_attribute_errors():
    assert set(dir(lit_loader)) >= set(lit_loader.__all__)
    with pytest.raises(AttributeError, match="nope"):
        _ = lit_loader.nope


@pytest.mark.parametrize("name", lit_loader.__all__)
def test_export_is_the_object_of_its_module(name):
    home = importlib.import_module(lit_loader._MODULE_BY_NAME[name])
    assert name in home.__all__
    assert getattr(lit_loader, name) is getattr(home, name)


def test_loader_imports_every_module_that_its_workers_need():
    """Otherwise each forked worker imports it again, and in a worker thread an import may lose a Ctrl-C."""
    code = (
        "import sys, threading\n"
        "from lit_loader import DataLoader\n"
        "imports = []\n"
        "def hook(event, args):\n"
        "    if event == 'import' and threading.current_thread() is not threading.main_thread():\n"
        "        imports.append(args[0])\n"
        "sys.addaudithook(hook)\n"
        "list(DataLoader(range(8), batch_size=2, seed=1, num_workers=2, worker_method='thread'))\n"
        "assert imports == [], imports\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs("hydra")
def test_importing_the_package_imports_no_torch_and_starts_nothing():
    code = (
        "import sys, threading, lit_loader, lit_loader.app.composition;"
        "assert not {'torch', 'lightning'} & set(sys.modules), 'heavy';"
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_type_checkers_see_the_names_of_the_package():
    stub = ast.parse(Path(lit_loader.__file__).with_suffix(".pyi").read_text())
    names = {node.names[0].name: node.module for node in stub.body if isinstance(node, ast.ImportFrom)}
    assert names == lit_loader._MODULE_BY_NAME
    assert sorted(names) == lit_loader.__all__
