"""Imports fall one way: a file imports only from layers to its left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lit_loader

PACKAGE = Path(__file__).parents[1] / "lit_loader"

LOADER = [
    "injection",
    "arguments",
    "global_batches",
    "resume",
    "rank_agreement",
    "planning",
    "epochs",
    "passes",
    "reporting",
    "iterator",
    "states",
    "standing",
    "device",
    "loader",
]
LAYERS = [
    ["batch_memory", "errors", "types", "forkserver", "configs", "resources"],
    ["seeding"],
    ["annotations"],
    ["formats"],
    ["samplers", "collate", "transforms", "transport"],
    ["engine"],
    LOADER,
    ["datasets"],
    ["datamodules", "callbacks"],
    ["recipes", "tuning"],
    ["cli"],
]
# Within a layer only these may import each other, from left to right.
ORDERED_WITHIN = [
    ["errors", "types"],
    LOADER,
    ["datamodules", "callbacks"],
]
MAY_NAME = {
    "lightning": {"datamodules", "callbacks", "recipes"},
    "hydra": {"configs"},
    "omegaconf": {"configs"},
    "matplotlib": {"datamodules", "recipes", "tuning"},
}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def files():
    return [
        path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py" or path.parent != PACKAGE
    ]


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def offences(layer: str, names: set[str]) -> list[str]:
    found = []
    for name in sorted(names):
        parts = name.split(".")
        if parts[0] == "lit_loader" and len(parts) == 2:  # a name of the package's root stands for its home
            parts = lit_loader._HOMES.get(parts[1], name).split(".")
        if parts[0] in MAY_NAME and layer not in MAY_NAME[parts[0]]:
            found.append(f"{layer} must not know {parts[0]}")
        if parts[0] != "lit_loader" or parts[1:2] == [layer]:
            continue
        if len(parts) < 2 or parts[1] not in LEVEL:
            found.append(f"{layer} imports {name}, which is in no layer")
            continue
        within = any(
            parts[1] in group and layer in group and group.index(parts[1]) < group.index(layer)
            for group in ORDERED_WITHIN
        )
        if LEVEL[parts[1]] >= LEVEL[layer] and not within:
            found.append(f"{layer} imports {parts[1]}")
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_fall_one_way(path):
    layer = layer_of(path)
    assert layer in LEVEL, f"{path} is in no layer of the table"
    assert offences(layer, imported(path.read_text())) == []


def test_an_import_that_climbs_would_be_caught():
    assert offences("engine", {"lit_loader.loader"}) == ["engine imports loader"]
    assert offences("samplers", {"lit_loader.transport.frames"}) == ["samplers imports transport"]
    assert offences("engine", {"lightning.pytorch"}) == ["engine must not know lightning"]
    assert offences("loader", {"lit_loader.planning", "lit_loader.engine"}) == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("from lit_loader import DataLoader", ["engine imports loader"]),
        ("from lit_loader import loader", ["engine imports loader"]),
        ("from lit_loader.loader import DataLoader", ["engine imports loader"]),
        ("import lit_loader.loader", ["engine imports loader"]),
        ("import lit_loader", ["engine imports lit_loader, which is in no layer"]),
        ("import lit_loader as ll", ["engine imports lit_loader, which is in no layer"]),
        ("from lit_loader import *", ["engine imports lit_loader.*, which is in no layer"]),
        ("def f():\n    from lit_loader import DetectionDataset", ["engine imports datasets"]),
        ("from lit_loader import sample_rng, get_worker_info, errors", []),
        ("from lit_loader.engine.task import Task\nimport torch.utils.data", []),
    ],
)
def test_the_packages_root_is_no_way_around(source, told):
    assert offences("engine", imported(source)) == told
