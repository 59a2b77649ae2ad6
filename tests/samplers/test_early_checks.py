"""Sampler configs refuse invalid numbers and flags when they are made, long before there is a table."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lit_loader import datamodules
from lit_loader.samplers.checks import check_settings

CONFIGS = [getattr(datamodules, name) for name in datamodules.__all__ if name.endswith("SamplerConfig")]
SETTINGS = [
    (config, field.name)
    for config in CONFIGS
    if config is not datamodules.SamplerConfig
    for field in fields(config)
    if field.name not in ("balance_by", "reduce")
]


@pytest.mark.parametrize(("config", "name"), SETTINGS)
def test_every_number_and_flag_is_checked_early(config, name):
    with pytest.raises(TypeError, match=f"`{name}` must be"):
        config(**{name: object()})


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"exponent": 1.5}, r"in \[0, 1\], got exponent=1.5"), ({"num_samples": 0}, "at least 1, got num_samples=0")],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        check_settings(settings)


def test_none_and_names_of_attributes_are_accepted():
    check_settings({"balance_by": "pose", "num_samples": None, "empty_share": None})
