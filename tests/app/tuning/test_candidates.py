"""Candidates of the search: a coarse grid, the most promising first, and steps of one setting."""

from __future__ import annotations

import pytest

from lit_loader.app.tuning import INLINE, METHODS, Candidate, coarse_grid, neighbours


@pytest.mark.parametrize(
    ("num_cores", "max_workers", "counts"),
    [
        (1, 4, {1, 2}),
        (2, 4, {1, 2, 3, 4}),
        (2, 1, {1}),
        (6, 64, {1, 2, 4, 5, 6, 8, 9}),
        (8, 6, {1, 2, 4}),
        (64, 128, {1, 2, 4, 8, 16, 32, 63, 64, 96, 128}),
    ],
)
def test_coarse_grid_surrounds_the_number_of_cores(num_cores, max_workers, counts):
    grid = coarse_grid(num_cores=num_cores, methods=["thread", "fork"], max_workers=max_workers)
    assert {candidate.num_workers for candidate in grid} == counts | {0}
    assert len(grid) == len(set(grid)) == 1 + 2 * len(counts)
    assert grid[0] == INLINE


def test_numbers_near_the_cores_are_first_for_every_method():
    grid = coarse_grid(num_cores=8, methods=["thread", "fork"], max_workers=16)
    assert grid[1:4] == [Candidate(8, "thread", 2), Candidate(8, "fork", 2), Candidate(7, "thread", 2)]


@pytest.mark.parametrize("candidate", [Candidate(1, "fork", 1), Candidate(4, "thread", 2), Candidate(9, "fork", 16)])
def test_neighbours_differ_in_one_setting_and_stay_in_bounds(candidate):
    candidates = neighbours(candidate, max_workers=9)
    assert candidates
    for near in candidates:
        assert near.method == candidate.method
        assert (near.num_workers != candidate.num_workers) != (near.prefetch_factor != candidate.prefetch_factor)
        assert 1 <= near.num_workers <= 9
        assert 1 <= near.prefetch_factor <= 16
    assert len(candidates) == len(set(candidates))


def test_step_from_many_workers_is_a_share_or_a_doubling():
    counts = {near.num_workers for near in neighbours(Candidate(16, "fork", 2), max_workers=64)}
    assert counts == {12, 16, 20, 32}
    counts = {near.num_workers for near in neighbours(Candidate(16, "fork", 2), max_workers=64, share=0.01)}
    assert counts == {15, 16, 17, 32}


def test_inline_has_no_neighbours():
    assert neighbours(INLINE, max_workers=8) == []


def test_settings_are_worker_settings_of_a_data_module():
    threads = {"num_workers": 2, "worker_method": "thread", "multiprocessing_context": None, "prefetch_factor": 4}
    assert Candidate(2, "thread", 4).settings() == threads
    processes = {**threads, "worker_method": "multiprocessing", "multiprocessing_context": "spawn"}
    assert Candidate(2, "spawn", 4).settings() == processes
    assert INLINE.settings() == {"num_workers": 0, "prefetch_factor": None}
    assert "thread" in METHODS
    assert str(INLINE) == "inline"
    assert str(Candidate(2, "fork", 4)) == "2 fork, prefetch 4"
