"""Imports fall one way: a file imports only from layers to its left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lit_loader

PACKAGE = Path(__file__).parents[1] / "lit_loader"

LAYERS = [
    ["__version__", "errors", "types"],
    ["foundation"],
    ["seeding", "memory"],
    ["annotations"],
    ["samplers", "collate", "images"],
    ["transforms"],
    ["engine"],
    ["loader"],
    ["datasets"],
    ["datamodules"],
    ["callbacks"],
    ["recipes"],
    ["app"],
]
# Within a layer only these may import each other, from left to right.
ORDERED_WITHIN = [["errors", "types"]]
MAY_NAME = {
    "lightning": {"app", "datamodules", "callbacks", "recipes"},
    "hydra": {"app"},
    "omegaconf": {"app"},
    "matplotlib": {"app", "callbacks", "datamodules", "recipes"},
}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def files():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py" or path.parent != PACKAGE]


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
            parts = lit_loader._MODULE_BY_NAME.get(parts[1], name).split(".")
        if parts[0] in MAY_NAME and layer not in MAY_NAME[parts[0]]:
            found.append(f"{layer} must not know {parts[0]}")
        if parts[0] != "lit_loader" or parts[1:2] in ([layer], ["__version__"]):
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
    assert offences("samplers", {"lit_loader.engine.plan"}) == ["samplers imports engine"]
    assert offences("engine", {"lightning.pytorch"}) == ["engine must not know lightning"]
    assert offences("loader", {"lit_loader.loader.worker_manager", "lit_loader.engine"}) == []


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
        ("from lit_loader.engine.spec import Task\nimport torch.utils.data", []),
    ],
)
def test_the_packages_root_is_no_way_around(source, told):
    assert offences("engine", imported(source)) == told


CORE = ("engine", "loader", "seeding", "samplers", "collate", "memory")
CORE_FILES = [path for path in files() if layer_of(path) in CORE]
# Private names of other packages that there is no public way to, or of objects that another module hands over.
OTHERS_PRIVATE = {
    "_C",
    "_HashedSeq",
    "_active_children",
    "_asdict",
    "_cdata",
    "_children",
    "_exit",
    "_fields",
    "_forkserver",
    "_get_default_mps_generator",
    "_getframe",
    "_is_profiler_enabled",
    "_make",
    "_nn",
    "_num_samples",
    "_ops",
    "_popen",
    "_replace",
    "_schema",
    "_torch_function_helpers",
    "_utils",
    "_worker_info",
}


def private_names_of_others(source: str) -> set[str]:
    """Return the private names that a module imports or reads and does not define."""
    tree = ast.parse(source)
    used, defined = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lit_loader"):
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (defined if isinstance(node.ctx, ast.Store) or own else used).add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined.update(target.id for target in targets if isinstance(target, ast.Name))
    return {name for name in used - defined - OTHERS_PRIVATE if name.startswith("_") and not name.endswith("__")}


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_of_the_core_uses_anothers_private_names(path):
    assert private_names_of_others(path.read_text()) == set()


def test_a_private_name_of_another_module_would_be_caught():
    assert private_names_of_others("from lit_loader.engine.plan import _hidden") == {"_hidden"}
    assert private_names_of_others("def f(loader):\n    return loader._start_epoch()") == {"_start_epoch"}
    assert private_names_of_others("class A:\n    def f(self, other):\n        self._x = other._x") == set()


def test_no_module_of_the_core_is_handed_the_loader():
    named = {
        path.name: [
            argument.arg
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for argument in (*node.args.args, *node.args.kwonlyargs)
            if argument.arg == "loader"
        ]
        for path in CORE_FILES
        if path.relative_to(PACKAGE).as_posix()
        != "loader/lightning.py"  # whose entry Lightning calls with the loader that it rebuilt
    }
    assert not any(named.values()), named


def test_no_modules_import_each_other():
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files()
    }
    edges = {
        name: {
            found if found in names else found.rpartition(".")[0]
            for found in imported_at_top(path.read_text())
            if found.startswith("lit_loader.")
        }
        - {name}
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, on_the_way: tuple[str, ...]) -> None:
        assert name not in on_the_way, " -> ".join((*on_the_way[on_the_way.index(name) :], name))
        if name in done or name not in edges:
            return
        for other in sorted(edges[name]):
            visit(other, (*on_the_way, name))
        done.add(name)

    for name in sorted(names):
        visit(name, ())


def imported_at_top(source: str) -> set[str]:
    """Return what is imported when a module is, by the modules themselves and not by the packages they are in."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names
