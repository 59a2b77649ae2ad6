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
    return table._columns & ((1 << table.bits) - 1), table._columns >> table.bits


def units_of(table):
    """Return the probability of each index in a table, in units of ``1 / (n * 2**bits)``."""
    own_units, alias = own_and_alias(table)
    units = own_units.copy()
    np.add.at(units, alias, (1 << table.bits) - own_units)
    return units


weights = st.lists(st.floats(0, 1e300), min_size=1, max_size=80).map(np.array).filter(lambda w: w.any())


@given(weights=weights)
def test_units_sum_to_the_table_and_keep_zero_weights_at_zero(weights):
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
def test_a_table_does_not_depend_on_the_chunks_it_is_built_in(weights, size):
    table = AliasTable(weights)
    units, _ = weight_units(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted, "_CHUNK", size)
        small = AliasTable(weights)
        of_small, _ = weight_units(weights)
        draws = small.draw(3, 2, 50)
    np.testing.assert_array_equal(of_small, units)
    np.testing.assert_array_equal(small._columns, table._columns)
    np.testing.assert_array_equal(draws, table.draw(3, 2, 50))


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).pareto(0.6, 200_000),
        np.append(np.zeros(199_999), 1.0),
        np.append(1.0, np.full(199_999, 1e-9)),
        np.sort(np.random.default_rng(1).random(200_000)),
    ],
    ids=["heavy tail", "one", "one and dust", "sorted"],
)
def test_tables_of_several_chunks_give_every_index_its_units(values):
    np.testing.assert_array_equal(units_of(AliasTable(values)), weight_units(values)[0])


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 2**17 + 1])
def test_equal_weights_have_equal_probabilities(n):
    units, bits = weight_units(np.full(n, 0.3))
    assert (units == 1 << bits).all()


def test_a_draw_does_not_depend_on_the_block_it_is_drawn_in():
    table = AliasTable(np.arange(1000.0))
    draws = table.draw(5, 0, 200_000)
    np.testing.assert_array_equal(table.draw(5, 65_000, 140_001), draws[65_000:140_001])


def test_a_zero_weight_is_never_drawn():
    values = np.ones(1000)
    values[::3] = 0
    draws = AliasTable(values).draw(1, 0, 200_000)
    assert (values[draws] > 0).all()
    assert len(np.unique(draws)) == np.count_nonzero(values)
