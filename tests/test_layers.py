"""Imports fall one way: a file imports only from layers to its left."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lit_loader

PACKAGE = Path(__file__).parents[1] / "lit_loader"

LAYERS = [
    ["__version__", "errors", "types"],
    ["foundation"],
    ["seeding", "memory"],
    ["schedules", "storage"],
    ["annotations"],
    ["samplers", "collate", "images"],
    ["mixing"],
    ["transforms"],
    ["engine"],
    ["loader"],
    ["monitoring"],
    ["datasets"],
    ["datamodules"],
    ["inspection"],
    ["callbacks"],
    ["recipes"],
    ["app"],
]
ALLOWED_WITHIN = {("errors", "types")}  # within a layer, the first may be imported by the second
MAY_NAME = {
    "lightning": {"app", "datamodules", "callbacks", "recipes"},
    "hydra": {"app"},
    "omegaconf": {"app"},
    "matplotlib": {"app", "callbacks", "datamodules", "inspection", "monitoring", "recipes"},
}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]
CORE = ("engine", "loader", "seeding", "samplers", "collate", "memory")


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


CORE_FILES = [path for path in FILES if layer_of(path) in CORE]


def imported_names(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def violations(layer: str, source: str) -> list[str]:
    """Return the imports of a module that break the order of the layers."""
    messages = []
    for name in sorted(imported_names(ast.walk(ast.parse(source)))):
        parts = name.split(".")
        if parts[0] == "lit_loader" and len(parts) == 2:
            # A name of the package's root belongs to the module that defines it.
            parts = lit_loader._MODULE_BY_NAME.get(parts[1], name).split(".")
        if parts[0] in MAY_NAME and layer not in MAY_NAME[parts[0]]:
            messages.append(f"{layer} must not know {parts[0]}")
        if parts[0] != "lit_loader" or parts[1:2] in ([layer], ["__version__"]):
            continue
        if len(parts) < 2 or parts[1] not in LEVEL:
            messages.append(f"{layer} imports {name}, which is in no layer")
        elif LEVEL[parts[1]] >= LEVEL[layer] and (parts[1], layer) not in ALLOWED_WITHIN:
            messages.append(f"{layer} imports {parts[1]}")
    return messages


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_fall_one_way(path):
    layer = layer_of(path)
    assert layer in LEVEL, f"{path} is in no layer of the table"
    assert violations(layer, path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("from lit_loader import DataLoader", ["engine imports loader"]),
        ("from lit_loader import loader", ["engine imports loader"]),
        ("from lit_loader.loader import DataLoader", ["engine imports loader"]),
        ("import lightning.pytorch", ["engine must not know lightning"]),
        ("import lit_loader as ll", ["engine imports lit_loader, which is in no layer"]),
        ("from lit_loader import *", ["engine imports lit_loader.*, which is in no layer"]),
        ("def f():\n    from lit_loader import DetectionDataset", ["engine imports datasets"]),
        ("from lit_loader import sample_rng, get_worker_info, errors", []),
        ("from lit_loader.engine.spec import Task\nimport torch.utils.data", []),
    ],
)
def test_upward_import_is_found_in_every_form(source, messages):
    assert violations("engine", source) == messages


def private_names(source: str) -> tuple[set[str], set[str]]:
    """Return the private names that a module reads, and those that it defines."""
    used = set()
    defined = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            on_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (defined if on_self or isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    is_private = re.compile(r"_.*(?<!__)").fullmatch
    return set(filter(is_private, used)), set(filter(is_private, defined))


def test_core_modules_use_no_private_name_of_another_module():
    names = {path.relative_to(PACKAGE).as_posix(): private_names(path.read_text()) for path in CORE_FILES}
    # Other names belong to torch or multiprocessing; these two are also of named tuples and of Lightning's samplers.
    core_names = set().union(*(defined for _, defined in names.values())) - {"_make", "_replace", "_num_samples"}
    foreign = {path: (used & core_names) - defined for path, (used, defined) in names.items()}
    assert {path: found for path, found in foreign.items() if found} == {}


def test_core_modules_are_not_handed_the_loader():
    names = {
        path.relative_to(PACKAGE).as_posix(): argument.arg
        for path in CORE_FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.arg == "loader"
    }
    # Lightning calls this module with the loader that it rebuilds.
    assert names.keys() <= {"loader/lightning.py"}


def test_modules_do_not_import_each_other_in_circles():
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph = TopologicalSorter()
    for name, path in names.items():
        # An import within a function happens later, so only those at the top of a module count.
        for imported in imported_names(ast.parse(path.read_text()).body):
            module = imported if imported in names else imported.rpartition(".")[0]
            if module in names and module != name:
                graph.add(name, module)
    graph.prepare()  # raises CycleError, which names the modules
