from __future__ import annotations

import importlib
import pkgutil

import pytest

from lit_loader import annotations

MODULES = [
    annotations.__name__,
    "lit_loader.collate",
    "lit_loader.samplers",
    *(m.name for m in pkgutil.iter_modules(annotations.__path__, "lit_loader.annotations.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_complete(name):
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, public) for public in module.__all__)
