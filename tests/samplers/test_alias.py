"""The alias table holds exactly the units it was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import weighted
from lit_loader.samplers.weighted import AliasTable, weight_units


def own_and_alias(table):
    """Return how many units each column gives to its own index, and the index that gets the rest."""
    return table.columns & ((1 << table.bits) - 1), table.columns >> table.bits


def units_of(table):
    """Return the probability of each index in a table, in units of ``1 / (n * 2**bits)``."""
    own_units, alias = own_and_alias(table)
    units = own_units.copy()
    np.add.at(units, alias, (1 << table.bits) - own_units)
    return units


weights = st.lists(st.floats(0, 1e300), min_size=1, max_size=80).map(np.array).filter(lambda w: w.any())


@given(weights=weights)
def test_units_sum_exactly_and_zero_weights_get_none(weights):
    units, bits = weight_units(weights)
    assert int(units.sum()) == len(weights) << bits
    assert ((units > 0) == (weights > 0)).all()
    scaled = weights / weights.max()
    probabilities = units / (len(weights) * 2.0**bits)
    np.testing.assert_allclose(probabilities, scaled / scaled.sum(), rtol=0, atol=2.0 ** (1 - bits))


@given(weights=weights)
def test_columns_give_every_index_its_units(weights):
    table = AliasTable(weights)
    units, bits = weight_units(weights)
    np.testing.assert_array_equal(units_of(table), units)
    own_units, alias = own_and_alias(table)
    assert own_units.min() >= 0
    assert own_units.max() < 1 << bits
    assert ((own_units > 0) | (alias == np.arange(len(weights))) | (weights == 0)).all()


@given(weights=weights, size=st.integers(1, 7))
def test_table_and_draws_do_not_depend_on_chunk_size(weights, size):
    table = AliasTable(weights)
    units, _ = weight_units(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted, "_CHUNK", size)
        small = AliasTable(weights)
        small_units, _ = weight_units(weights)
        draws = small.draw(3, 2, 50)
    np.testing.assert_array_equal(small_units, units)
    np.testing.assert_array_equal(small.columns, table.columns)
    np.testing.assert_array_equal(draws, table.draw(3, 2, 50))


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 2**17 + 1])
def test_equal_weights_have_equal_probabilities(n):
    units, bits = weight_units(np.full(n, 0.3))
    assert (units == 1 << bits).all()
