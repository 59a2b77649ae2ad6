"""Parameters by patterns of their names: groups for an optimizer, and frozen parameters."""

from __future__ import annotations

from typing import Any

import pytest

from lit_loader.recipes.parameters import freeze_parameters, parameter_groups
from tests.support.toy_task import Net


def groups(model: Net, scales: dict[str, float]) -> dict[str, tuple[float, bool]]:
    """Return the factor of each parameter, and whether it decays."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr_scale"], "weight_decay" not in group)
        for group in parameter_groups(model, scales)
        for parameter in group["params"]
    }


def test_every_trained_parameter_is_in_one_group_and_vectors_do_not_decay() -> None:
    model = Net()
    parameters = dict(model.named_parameters())
    assert groups(model, {}) == {name: (1.0, parameter.ndim > 1) for name, parameter in parameters.items()}
    assert sum(len(group["params"]) for group in parameter_groups(model, {})) == len(parameters)


def test_first_matching_pattern_gives_the_factor() -> None:
    scales = {name: scale for name, (scale, _) in groups(Net(), {"body.0.*": 0.5, "body.*": 0.1}).items()}
    expected = {"body.0": 0.5, "body.1": 0.1, "head": 1.0}
    assert scales == {f"{layer}.{kind}": scale for layer, scale in expected.items() for kind in ("weight", "bias")}


def test_frozen_parameters_have_no_gradient_and_are_in_no_group() -> None:
    model = Net()
    freeze_parameters(model, ["body.*", "*.bias"])
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["head.weight"]
    assert set(groups(model, {})) == {"head.weight"}


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("bodi.*", r"no parameter is called 'bodi\.\*'; did you mean body\.\*\? names begin with body, head"),
        ("body.1.wieght", r"no parameter is called 'body\.1\.wieght'; did you mean body\.1\.weight\? names begin"),
        ("model.layers.*", r"no parameter is called 'model\.layers\.\*'; names begin with body, head"),
    ],
)
def test_pattern_without_a_match_is_refused_with_the_closest_name(pattern: str, match: str) -> None:
    with pytest.raises(ValueError, match=f"freeze: {match}"):
        freeze_parameters(Net(), [pattern])
    with pytest.raises(ValueError, match=f"lr_scales: {match}"):
        parameter_groups(Net(), {pattern: 0.1})


def test_freezing_all_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"freeze=\['\*'\] leaves no parameter to train"):
        freeze_parameters(Net(), ["*"])


@pytest.mark.parametrize("scale", [0, -1.0, float("nan")])
def test_factor_that_is_not_positive_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match=r"must be above 0; use freeze"):
        parameter_groups(Net(), {"body.*": scale})


def test_patterns_given_as_one_string_are_refused() -> None:
    with pytest.raises(TypeError, match=r"freeze='body\.\*' is one text; give a list"):
        freeze_parameters(Net(), "body.*")
