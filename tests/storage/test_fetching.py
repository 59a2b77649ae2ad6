"""Which images share a request."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.storage.fetching import REQUEST_BYTES, Neighbours
from tests.support.fetched_set import catalog_of


def run_of(neighbours: Neighbours, slot: int, due: set[int]) -> list[int]:
    slots = neighbours.of(slot)
    return neighbours.around(slot, slots, np.isin(slots, list(due)))


def test_raw_images_have_no_neighbours():
    assert not Neighbours(catalog_of([5] * 10)).exist


def test_due_neighbours_share_a_request():
    neighbours = Neighbours(catalog_of([5000] * 20, per_object=10))
    assert neighbours.of(3).tolist() == list(range(10))
    assert neighbours.of(10).tolist() == list(range(10, 20))
    assert run_of(neighbours, 3, set(range(10))) == list(range(10))
    assert run_of(neighbours, 3, {1, 2, 3, 5}) == [1, 2, 3]
    assert run_of(neighbours, 3, {3}) == [3]
    assert run_of(neighbours, 9, {0, 8, 9}) == [8, 9]


def test_images_with_a_large_gap_have_their_own_requests():
    neighbours = Neighbours(catalog_of([5000] * 20, per_object=10, gap=5000))
    assert run_of(neighbours, 3, set(range(10))) == [3]


@pytest.mark.parametrize("length", [50_000, REQUEST_BYTES - 1, REQUEST_BYTES, 3 * REQUEST_BYTES])
def test_requests_have_bounded_size_and_cover_all_images_once(length):
    catalog = catalog_of([length] * 200, per_object=100)
    neighbours = Neighbours(catalog)
    absent = set(range(200))
    num_requests = 0
    while absent:
        run = run_of(neighbours, min(absent), absent)
        assert absent.issuperset(run)
        absent.difference_update(run)
        num_requests += 1
        num_bytes = int(catalog.starts[run[-1]] + length - catalog.starts[run[0]])
        assert num_bytes <= REQUEST_BYTES + length
    assert num_requests <= 2 * (100 * (length + 512) // REQUEST_BYTES + 1)


def test_order_of_slots_need_not_be_that_of_bytes():
    catalog = catalog_of([100] * 8, per_object=4)
    permutation = np.array([5, 0, 7, 3, 1, 6, 2, 4])
    for name in ("object_of", "starts"):
        getattr(catalog, name)[:] = getattr(catalog, name)[permutation]
    neighbours = Neighbours(catalog)
    assert permutation[run_of(neighbours, 0, set(range(8)))].tolist() == [4, 5, 6, 7]
