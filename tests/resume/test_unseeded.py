"""Without a seed a loader resumes as torchdata's does: the same indices from the generators' state, never a crash."""

from __future__ import annotations

import json
import random
import warnings
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler, SubsetRandomSampler
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data import WeightedRandomSampler as TorchWeightedRandomSampler

from lit_loader import DataLoader, samplers
from lit_loader.errors import NotResumableWarning, ResumeWarning
from lit_loader.resume import sealed
from tests.resume.sets import StatefulSampler

SIZE, BATCH = 26, 4
INLINE, WORKERS = {}, {"num_workers": 2}
PERSISTENT = {"num_workers": 2, "persistent_workers": True}
THREADS = {"num_workers": 2, "worker_method": "thread"}


class Indices(Dataset):
    """Gives the index, and draws in between as a model would."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        torch.rand(3)
        return index


class Lazily(Sampler):
    """Draws from all three generators when its first index is asked for."""

    def __len__(self):
        return SIZE

    def __iter__(self):
        order = [*range(SIZE)]
        random.shuffle(order)
        np.random.shuffle(order)
        yield from (order[i] for i in torch.randperm(SIZE).tolist())


class Eagerly(Lazily):
    """Draws when it is iterated."""

    def __iter__(self):
        return iter(list(super().__iter__()))


class Lists:
    """Batches of any size, drawn when they are iterated."""

    def __iter__(self):
        order = torch.randperm(SIZE).tolist()
        return iter([order[:3], order[3:10], order[10:11], order[11:]])


def own_generator():
    generator = torch.Generator()
    generator.manual_seed(5)
    return generator


SAMPLERS = {
    "in order": lambda: {"batch_size": BATCH},
    "shuffle": lambda: {"batch_size": BATCH, "shuffle": True},
    "shuffle with a generator": lambda: {"batch_size": BATCH, "shuffle": True, "generator": own_generator()},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "replacement": lambda: {"batch_size": BATCH, "sampler": TorchRandomSampler(Indices(), True, 30)},
    "weighted": lambda: {"batch_size": BATCH, "sampler": TorchWeightedRandomSampler(range(1, SIZE), 20)},
    "subset": lambda: {"batch_size": BATCH, "sampler": SubsetRandomSampler(range(3, 20)), "drop_last": True},
    "distributed": lambda: {"batch_size": BATCH, "sampler": DistributedSampler(Indices(), 2, 1)},
    "batch sampler": lambda: {"batch_sampler": BatchSampler(TorchRandomSampler(Indices()), 5, False)},
    "user's, lazily": lambda: {"batch_size": BATCH, "sampler": Lazily()},
    "user's, eagerly": lambda: {"batch_size": BATCH, "sampler": Eagerly()},
    "user's batches": lambda: {"batch_sampler": Lists()},
    "user's with state": lambda: {"batch_size": BATCH, "sampler": StatefulSampler()},
    "lit_loader's": lambda: {"batch_size": BATCH, "sampler": samplers.RandomSampler(SIZE)},
}


def seed_all(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def plain(batches):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def stop(loader, batches):
    """Return the batches before and after a point, and the state there."""
    iterator = iter(loader)
    before = [next(iterator) for _ in range(batches)]
    state = loader.state_dict()
    torch.rand(7)  # of the model
    return plain(before), plain(iterator), state


@pytest.mark.parametrize("workers", [INLINE, WORKERS, PERSISTENT, THREADS], ids=str)
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_indices_follow_and_the_epoch_is_whole(name, workers):
    for stop_at in (1, 3):
        seed_all(stop_at)
        with DataLoader(Indices(), **SAMPLERS[name](), **workers) as loader:
            list(loader)
            before, rest, state = stop(loader, stop_at)
        state = json.loads(json.dumps(state))
        seed_all(99)
        with DataLoader(Indices(), **SAMPLERS[name](), **workers) as loader:
            with pytest.warns(ResumeWarning, match=r"without seed= .* same indices follow") as told:
                loader.load_state_dict(state)
            assert len(told) == 1
            again = iter(loader)
            first = plain([next(again)])
            known_end = len(rest) == 1 and name != "user's batches"
            assert loader.state_dict()["position"] == (0 if known_end else stop_at + 1)
            assert first + plain(again) == rest
            if name in ("shuffle", "user's, lazily", "user's, eagerly", "lit_loader's"):
                assert sorted(chain(*before, *rest)) == list(range(SIZE))


@pytest.mark.parametrize("name", ["shuffle", "user's, lazily", "user's, eagerly"])
def test_the_process_wide_generators_are_left_as_they_were(name):
    with DataLoader(Indices(), **SAMPLERS[name]()) as loader:
        _, _, state = stop(loader, 2)
    loader = DataLoader(range(SIZE), **SAMPLERS[name]())  # draws nothing itself
    with pytest.warns(ResumeWarning):
        loader.load_state_dict(state)
    iterator = iter(loader)
    seed_all(4)
    next(iterator)
    found = torch.rand(3), np.random.rand(3), random.random()
    seed_all(4)
    assert torch.equal(found[0], torch.rand(3))
    assert (found[1] == np.random.rand(3)).all()
    assert found[2] == random.random()


def test_with_a_generator_of_its_own_the_next_epochs_follow_too():
    def loader():
        return DataLoader(Indices(), **SAMPLERS["shuffle with a generator"]())

    whole = loader()
    full = [plain(whole) for _ in range(4)]
    for epoch, stop_at in ((0, 3), (1, 0), (1, 3), (2, 0)):
        saving = loader()
        for _ in range(epoch):
            list(saving)
        if stop_at:
            _, _, state = stop(saving, stop_at)
        else:
            state = saving.state_dict()
        going_on = loader()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResumeWarning)
            going_on.load_state_dict(state)
        found = [plain(going_on) for _ in range(2)]
        assert found == [full[epoch][stop_at:], *full[epoch + 1 : epoch + 2]]


def test_a_state_taken_before_the_first_batch_gives_the_order_that_iter_began():
    seed_all(1)
    with DataLoader(Indices(), batch_size=BATCH, shuffle=True, **WORKERS) as loader:
        iterator = iter(loader)  # workers ask for the first indices at once
        state = loader.state_dict()
        expected = plain(iterator)
    seed_all(2)
    with DataLoader(Indices(), batch_size=BATCH, shuffle=True, **WORKERS) as loader:
        loader.load_state_dict(state)
        assert plain(loader) == expected


@pytest.mark.parametrize("workers", [INLINE, WORKERS], ids=str)
def test_after_the_last_batch_the_next_epoch_follows_whole(workers):
    with DataLoader(Indices(), batch_size=BATCH, **workers) as loader:
        iterator = iter(loader)
        for _ in range(len(loader)):  # and no further, as Lightning does
            next(iterator)
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        loader.load_state_dict(state)
        assert list(chain(*plain(loader))) == list(range(SIZE))


class ChangesItsMind(Lazily):
    def __iter__(self):
        return iter(np.random.default_rng().permutation(SIZE).tolist())


def test_a_sampler_that_gives_others_is_noticed():
    with DataLoader(Indices(), batch_size=BATCH, sampler=ChangesItsMind()) as loader:
        _, _, state = stop(loader, 2)
    loader = DataLoader(Indices(), batch_size=BATCH, sampler=ChangesItsMind())
    with pytest.warns(ResumeWarning, match="without seed="):
        loader.load_state_dict(state)
    with pytest.warns(ResumeWarning, match="ChangesItsMind gave other indices in the first 2 batches"):
        assert len(list(loader)) == 5


SEEDED = DataLoader(Indices(), batch_size=BATCH, seed=1).state_dict()
UNFIT = {
    "seeded": SEEDED,
    "damaged": {**SEEDED, "position": 4},
    "of another kind": {"_snapshot": {}, "_steps_since_snapshot": 0},
    "not resumable": None,
}


@pytest.mark.parametrize("which", UNFIT)
def test_a_state_that_does_not_fit_begins_the_epoch_anew_with_one_warning(which):
    state = UNFIT[which]
    if state is None:
        with pytest.warns(NotResumableWarning, match="in_order=False"):
            state = DataLoader(Indices(), in_order=False, num_workers=1).state_dict()
    loader = DataLoader(Indices(), batch_size=BATCH)
    with pytest.warns(ResumeWarning, match="its epoch begins anew") as told:
        loader.load_state_dict(state)
    assert len(told) == 1
    assert list(chain(*plain(loader))) == list(range(SIZE))


def test_generators_of_a_hostile_state_are_refused_when_it_is_loaded():
    with DataLoader(Indices(), **SAMPLERS["user's, lazily"]()) as loader:
        _, _, state = stop(loader, 2)
    states = state["generators"]["asked"]
    for key, value in {
        "torch": "AAAA",
        "numpy": ["AAAA", 1, 0, 0.0],
        "python": ["????", None],
        "own": ["AAAA"],
    }.items():
        bad = {name: part for name, part in state.items() if name not in ("version", "check")}
        bad["generators"] = {"iterated": None, "asked": {**states, key: value}}
        loader = DataLoader(Indices(), **SAMPLERS["user's, lazily"]())
        before = torch.get_rng_state()
        with pytest.warns(ResumeWarning, match=r"its epoch begins anew\. .*generator"):
            loader.load_state_dict(sealed(bad))
        assert torch.equal(torch.get_rng_state(), before)
        assert len(list(loader)) == 7


def test_torchs_samplers_are_asked_for_no_length_and_no_digest():
    """What nobody resumes costs nothing: a plain shuffle has no notes for each batch."""
    loader = DataLoader(Indices(), batch_size=BATCH, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert not loader._standing._progress._notes
    state = loader.state_dict()
    assert state["digest"] is None
    assert len(json.dumps(state)) < 10_000
