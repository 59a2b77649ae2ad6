from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from lit_loader.annotations.formats.policy import ReadPolicy

ACTIONS = {name: get_args(hint) for name, hint in get_type_hints(ReadPolicy).items()}


@pytest.mark.parametrize("name", ACTIONS)
def test_every_documented_action_is_accepted(name):
    for action in ACTIONS[name]:
        assert getattr(ReadPolicy(**{name: action}), name) == action


@pytest.mark.parametrize("name", ACTIONS)
def test_unknown_action_is_refused_with_known_ones(name):
    with pytest.raises(ValueError, match=f"{name}='no such' must be one of '{ACTIONS[name][0]}'"):
        ReadPolicy(**{name: "no such"})


def test_every_problem_may_be_raised():
    assert ReadPolicy(**{field.name: "raise" for field in fields(ReadPolicy)}).degenerate == "raise"
