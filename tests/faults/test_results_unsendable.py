"""Guarantee: an unsendable batch is an error in its turn that names batch and reason, and the next ones come."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.errors import UnsendableBatchError
from lit_loader.memory import describe_unsendable
from tests.support.odd_things import RESULTS, ResultsAndNumbers, ResultsInAStream, as_list
from tests.support.outcomes import outcomes_of
from tests.support.slot_sets import slots_of
from tests.support.toys import Point

CONTEXTS = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.soak)]
EACH_SEED = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


@EACH_SEED
@pytest.mark.parametrize("context", CONTEXTS)
def test_error_comes_in_its_turn_and_names_batch_reason_and_remedy(context, seed):
    loader = DataLoader(
        ResultsAndNumbers(),
        batch_size=2,
        num_workers=2,
        timeout=60,
        multiprocessing_context=context,
        seed=seed,
        collate_fn=as_list,
    )
    outcomes = outcomes_of(loader)
    assert len(outcomes) == 2 * len(RESULTS)
    for number, batch in enumerate(outcomes):
        first = 2 * number
        if number % 2:
            assert [sample["index"] for sample in batch] == [first, first + 1]
            assert [float(sample["image"][5, 7]) for sample in batch] == [first, first + 1]
            continue
        name, (_, description) = list(RESULTS.items())[number // 2]
        text = str(batch)
        assert f"batch {number} (counted from 0)" in text, name
        assert description in text, name
        assert 'worker_method="thread"' in text, name
        if "loading" not in name:
            assert "['odd'][1]" in text, name
            assert "in DataLoader worker process" in text, name


@EACH_SEED
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["inline", "threads"])
def test_values_need_no_pickling_inline_and_in_threads(workers, seed):
    batches = list(DataLoader(ResultsAndNumbers(), batch_size=2, seed=seed, collate_fn=as_list, **workers))
    assert len(batches) == 2 * len(RESULTS)
    assert all("odd" in batch[1] for batch in batches[::2])


@EACH_SEED
def test_pickling_error_does_not_end_a_stream(seed):
    outcomes = outcomes_of(DataLoader(ResultsInAStream(), batch_size=None, num_workers=1, seed=seed))
    assert len(outcomes) == 4 * len(RESULTS)
    assert [index for index, item in enumerate(outcomes) if isinstance(item, Exception)] == list(
        range(1, 4 * len(RESULTS), 4)
    )


@EACH_SEED
def test_unsendable_batches_free_their_slots(seed):
    arguments = {"num_workers": 2, "persistent_workers": True, "seed": seed, "collate_fn": as_list}
    with DataLoader(ResultsAndNumbers(), batch_size=2, **arguments) as loader:
        for _ in range(6):
            outcomes = outcomes_of(loader)
            assert sum(isinstance(outcome, UnsendableBatchError) for outcome in outcomes) == len(RESULTS)
            del outcomes
        gc.collect()
        assert slots_of(loader).num_slots <= 54  # of 108 batches; the 18 of an epoch are alive at a time
        assert slots_of(loader).kept_bytes == 0


@pytest.mark.parametrize(
    ("make", "description"),
    [
        (lambda lock: lock, "it is a _thread.lock"),
        (lambda lock: [1, {"a": (torch.zeros(2), lock)}], "its part [1]['a'][1] is a _thread.lock"),
        (lambda lock: Point(1, [lock]), "its part [1][0] is a _thread.lock"),
        (lambda lock: SimpleNamespace(a=1, b=lock), "its part .b is a _thread.lock"),
        (lambda lock: [{lock: 1}], "its part [0] is a dict"),
    ],
    ids=["itself", "in containers", "in a named tuple", "an attribute", "a key"],
)
def test_the_innermost_unsendable_part_is_named(make, description):
    assert describe_unsendable(make(threading.Lock())) == description
