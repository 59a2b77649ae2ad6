"""A class with torchvision's name takes torchvision's arguments in torchvision's order."""

from __future__ import annotations

import inspect

import pytest
from torchvision.transforms import v2

from lit_loader import transforms

SAME = sorted(name for name in transforms.__all__ if isinstance(getattr(transforms, name), type) and hasattr(v2, name))


def positional(kind):
    parameters = list(inspect.signature(kind).parameters.values())
    return [
        (parameter.name, parameter.default)
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]


@pytest.mark.parametrize("name", SAME)
def test_positional_arguments_are_torchvisions(name):
    assert positional(getattr(transforms, name)) == positional(getattr(v2, name))


def test_the_flips_are_among_them_and_take_a_probability_first():
    assert {"RandomHorizontalFlip", "RandomVerticalFlip"} <= set(SAME)
    for name in ("RandomHorizontalFlip", "RandomVerticalFlip"):
        assert getattr(transforms, name)(0.25).p == 0.25
    with pytest.raises(TypeError):
        transforms.RandomHorizontalFlip(0.5, [(0, 1)])
