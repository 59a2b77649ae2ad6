from __future__ import annotations

import importlib
import pkgutil

import pytest

from lit_loader.annotations import formats

MODULES = [
    formats.__name__,
    *(module.name for module in pkgutil.walk_packages(formats.__path__, "lit_loader.annotations.formats.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_complete(name):
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, public) for public in module.__all__)
