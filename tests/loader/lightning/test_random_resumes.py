"""Guarantee: a resumed run gets the samples and draws of the whole run, or a warning that it is not exact.

With several loaders of unequal length, iterable datasets with and without a state, reloaded loaders, and checkpoints
that any hook saves.
"""

from __future__ import annotations

import pytest

from tests.support.random_resumes import Case, Part, outcome, random_case

pytestmark = [
    pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
]


def parts(*names_and_sizes, **settings):
    """Return parts from pairs of a dataset's name and its size."""
    return tuple(Part(name, size, **settings) for name, size in names_and_sizes)


EXACT = {
    "short map loader beside a stream": Case(parts(("map", 9), ("iterator", 13)), "max_size_cycle", stop=0.4),
    "short stream in max_size": Case(parts(("iterator", 16), ("stateful", 6)), "max_size", stop=0.5),
    "map loader that ended before the step that raised": Case(
        parts(("map", 3), ("iterator", 12)), "max_size", "on_exception", 0.66, "on_train_batch_end"
    ),
    "batch that could not be made": Case(
        parts(("map", 9), ("stream", 14)), "max_size_cycle", "on_exception", 0.3, "collate"
    ),
    "step that has begun as a cycle ends": Case(
        parts(("stream", 7), ("stream", 15), ("stateful", 10)), "max_size_cycle", "on_train_batch_start", 0.8
    ),
    "longer stream in min_size": Case(
        parts(("stateful", 14), ("counted", 5)), "min_size", "on_train_batch_start", 0.5, twice=True
    ),
    "epoch shorter than the limit": Case(parts(("iterator", 5)), stop=0.7, limit=4),
    "limited stream that counts its epochs": Case(parts(("counted", 16)), stop=0.5, limit=2),
    "reloaded stream": Case(parts(("iterator", 11)), stop=0.2, reload=1),
    "reloaded every second epoch": Case(
        parts(("map", 6), ("stream", 17)), "max_size_cycle", stop=0.39, reload=2, same_datasets=True
    ),
    "resumed twice as an epoch begins": Case(
        parts(("counted", 8), ("iterator", 5)), "max_size_cycle", "on_train_epoch_start", 0.3, twice=True
    ),
    "stopped by max_steps": Case(parts(("stream", 11)), hook="on_train_end", stop=0.6, short=True),
    "workers": Case((Part("stream", 6), Part("stateful", 10, num_workers=2)), "max_size", "on_train_batch_start", 0.45),
}
NOT_EXACT = {
    "persistent workers of a limited stream": Case(
        parts(("counted", 16), num_workers=2, persistent=True), stop=0.5, limit=2
    ),
    "stream with a state that is reloaded": Case(parts(("stateful", 11)), stop=0.25, reload=1),
}


@pytest.mark.parametrize("name", EXACT)
def test_resumed_run_gets_the_same_samples_and_draws(tmp_path, name):
    assert outcome(EXACT[name], tmp_path) == "equal"


@pytest.mark.parametrize("name", NOT_EXACT)
def test_resume_that_is_not_exact_warns(tmp_path, name):
    assert outcome(NOT_EXACT[name], tmp_path, with_warning=True) == "named"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 400, 40))
def test_random_runs_resume_exactly_or_warn(tmp_path, first):
    outcomes = {seed: outcome(random_case(seed), tmp_path / str(seed)) for seed in range(first, first + 40)}
    wrong = {seed: text for seed, text in outcomes.items() if text not in ("equal", "named", "empty", "unstable")}
    assert not wrong
