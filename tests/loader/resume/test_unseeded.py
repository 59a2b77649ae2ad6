"""Without a seed a loader resumes as torchdata's does: the same indices from the generator's state, never a crash."""

from __future__ import annotations

import base64
import json
import random
import warnings
from itertools import chain

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler, SubsetRandomSampler
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data import WeightedRandomSampler as TorchWeightedRandomSampler

from lit_loader import DataLoader, samplers
from lit_loader.errors import NotResumableWarning, ResumeWarning
from tests.support.resume_sets import StatefulSampler

SIZE = 26
BATCH = 4
INLINE = {}
WORKERS = {"num_workers": 2}
PERSISTENT = {"num_workers": 2, "persistent_workers": True}
THREADS = {"num_workers": 2, "worker_method": "thread"}


class Indices(Dataset):
    """Gives the index, and draws in between as a model would."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        torch.rand(3)
        return index


class InOrder(Sampler):
    """A user's sampler without a state."""

    def __len__(self):
        return SIZE

    def __iter__(self):
        return iter(range(SIZE))


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
    "batch sampler with a generator": lambda: {
        "batch_sampler": BatchSampler(TorchRandomSampler(Indices(), generator=own_generator()), 5, False)
    },
    "batches as samples": lambda: {
        "batch_size": None,
        "sampler": BatchSampler(TorchRandomSampler(Indices(), generator=own_generator()), 5, False),
    },
    "batch sampler": lambda: {"batch_sampler": BatchSampler(TorchRandomSampler(Indices()), 5, False)},
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
    received = [next(iterator) for _ in range(batches)]
    state = loader.state_dict()
    torch.rand(7)  # of the model
    return plain(received), plain(iterator), state


@pytest.mark.parametrize(
    "workers", [INLINE, pytest.param(WORKERS, marks=pytest.mark.soak), PERSISTENT, THREADS], ids=str
)
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_indices_follow_and_the_epoch_is_whole(name, workers):
    for stop_at in (1, 3):
        seed_all(stop_at)
        with DataLoader(Indices(), **SAMPLERS[name](), **workers) as loader:
            list(loader)
            received, remaining, state = stop(loader, stop_at)
        state = json.loads(json.dumps(state))
        seed_all(99)
        with DataLoader(Indices(), **SAMPLERS[name](), **workers) as loader:
            with pytest.warns(ResumeWarning, match=r"without seed= .* same indices follow") as records:
                loader.load_state_dict(state)
            assert len(records) == 1
            iterator = iter(loader)
            first = plain([next(iterator)])
            assert loader.state_dict()["position"] == (0 if len(remaining) == 1 else stop_at + 1)
            assert first + plain(iterator) == remaining
            if name in ("shuffle", "lit_loader's"):
                assert sorted(chain(*received, *remaining)) == list(range(SIZE))


def test_resuming_leaves_the_default_generator_unchanged():
    with DataLoader(Indices(), **SAMPLERS["shuffle"]()) as loader:
        _, _, state = stop(loader, 2)
    loader = DataLoader(range(SIZE), **SAMPLERS["shuffle"]())  # draws nothing itself
    with pytest.warns(ResumeWarning):
        loader.load_state_dict(state)
    iterator = iter(loader)
    seed_all(4)
    next(iterator)
    draws = torch.rand(3)
    seed_all(4)
    assert torch.equal(draws, torch.rand(3))


@pytest.mark.parametrize("workers", [INLINE, WORKERS], ids=str)
@pytest.mark.parametrize(
    "arguments",
    [{"sampler": InOrder(), "batch_size": BATCH}, {"batch_sampler": [[0, 1, 2], [3], [4, 5], [6]]}],
    ids=["sampler", "batches"],
)
def test_user_sampler_without_state_is_forwarded_by_count(arguments, workers):
    with DataLoader(Indices(), **arguments, **workers) as loader:
        _, remaining, state = stop(loader, 2)
    with DataLoader(Indices(), **arguments, **workers) as loader:
        with pytest.warns(ResumeWarning, match=r"has no state_dict, .* first 2 batches are dropped"):
            loader.load_state_dict(json.loads(json.dumps(state)))
        assert plain(loader) == remaining


@pytest.mark.parametrize("workers", [INLINE, WORKERS, PERSISTENT], ids=str)
def test_with_a_generator_of_its_own_the_next_epochs_follow_too(workers):
    def loader():
        return DataLoader(Indices(), **SAMPLERS["shuffle with a generator"](), **workers)

    unbroken = loader()
    full = [plain(unbroken) for _ in range(4)]
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
        actual = [plain(going_on) for _ in range(2)]
        assert actual == [full[epoch][stop_at:], *full[epoch + 1 : epoch + 2]]


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


SEEDED = DataLoader(Indices(), batch_size=BATCH, seed=1).state_dict()
UNFIT = {
    "seeded": SEEDED,
    "damaged": {**SEEDED, "position": "4"},
    "of another kind": {"_snapshot": {}, "_steps_since_snapshot": 0},
    "another batch size": DataLoader(Indices(), batch_size=8).state_dict(),
    "not resumable": None,
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_state_that_does_not_fit_begins_the_epoch_anew_with_one_warning(name):
    state = UNFIT[name]
    if state is None:
        with pytest.warns(NotResumableWarning, match="in_order=False"):
            state = DataLoader(Indices(), in_order=False, num_workers=1).state_dict()
    loader = DataLoader(Indices(), batch_size=BATCH)
    with pytest.warns(ResumeWarning, match="without seed="):
        loader.load_state_dict(stop(DataLoader(Indices(), batch_size=BATCH), 2)[-1])  # is forgotten
    with pytest.warns(ResumeWarning, match="its epoch starts over") as records:
        loader.load_state_dict(state)
    assert len(records) == 1
    assert list(chain(*plain(loader))) == list(range(SIZE))


@pytest.mark.parametrize(
    "generator", ["AAAA", "????", base64.b64encode(b"\xff" * 5056).decode(), "A" * 20_000, 7, ["AAAA"]]
)
@pytest.mark.parametrize("name", ["shuffle", "shuffle with a generator"])
def test_hostile_generator_state_is_refused_when_it_is_loaded(name, generator):
    with DataLoader(Indices(), **SAMPLERS[name]()) as loader:
        _, _, state = stop(loader, 2)
    loader = DataLoader(Indices(), **SAMPLERS[name]())
    generator_state = torch.get_rng_state()
    with pytest.warns(ResumeWarning, match=r"its epoch starts over\. .*generator"):
        loader.load_state_dict({**state, "generator": generator})
    assert torch.equal(torch.get_rng_state(), generator_state)
    assert len(list(loader)) == 7


@pytest.mark.parametrize("workers", [INLINE, PERSISTENT], ids=str)
def test_a_sampler_with_a_state_goes_on_from_before_its_first_batch(workers):
    with DataLoader(Indices(), batch_size=BATCH, sampler=StatefulSampler(), **workers) as loader:
        next(iter(loader))  # broken off
        iterator = iter(loader)
        state = loader.state_dict()
        expected = plain(iterator)
    with DataLoader(Indices(), batch_size=BATCH, sampler=StatefulSampler(), **workers) as loader:
        loader.load_state_dict(state)
        assert plain(loader) == expected


class Adopting(StatefulSampler):
    """Keeps the dict that it is given, and changes it."""

    def __init__(self):
        super().__init__()
        self.state = {"taken": 0, "round": 0}

    def __iter__(self):
        order = np.random.default_rng(self.state["round"]).permutation(self.size)
        while self.state["taken"] < self.size:
            self.state["taken"] += 1
            yield int(order[self.state["taken"] - 1])

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_sampler_that_keeps_its_state_changes_nobody_elses():
    with DataLoader(Indices(), batch_size=BATCH, sampler=Adopting()) as loader:
        _, remaining, state = stop(loader, 2)
    saved = json.dumps(state)
    with DataLoader(Indices(), batch_size=BATCH, sampler=Adopting(), **WORKERS) as loader:
        with pytest.warns(ResumeWarning, match="without seed="):
            loader.load_state_dict(state)
        assert plain(loader) == remaining
    assert json.dumps(state) == saved


class Picky(StatefulSampler):
    def load_state_dict(self, state):
        raise KeyError("no such state")


def test_a_sampler_that_refuses_its_state_begins_its_epoch_anew():
    with DataLoader(Indices(), batch_size=BATCH, sampler=Picky()) as loader:
        _, _, state = stop(loader, 2)
    loader = DataLoader(Indices(), batch_size=BATCH, sampler=Picky())
    with pytest.warns(ResumeWarning, match="without seed="):
        loader.load_state_dict(state)
    with pytest.warns(ResumeWarning, match=r"the epoch starts over: Picky\.load_state_dict\(\) raised KeyError"):
        iterator = iter(loader)
    assert len(list(iterator)) == 7


def test_a_sampler_that_has_become_shorter_says_so():
    with DataLoader(range(SIZE), batch_size=BATCH, shuffle=True) as loader:
        _, _, state = stop(loader, 5)
    state["dataset_length"] = 9
    loader = DataLoader(range(9), batch_size=BATCH, shuffle=True)
    with pytest.warns(ResumeWarning, match="without seed="):
        loader.load_state_dict(state)
    with pytest.warns(ResumeWarning, match="gave 3 batches, and the state was saved after 5: the epoch is over"):
        assert len(list(loader)) == 3  # of the next epoch


def test_on_several_ranks_what_a_rank_draws_is_not_resumed(monkeypatch):
    def loader(sampler):
        return DataLoader(Indices(), batch_size=BATCH, sampler=sampler)

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    with pytest.warns(NotResumableWarning, match="each rank draws for itself"):
        assert loader(TorchRandomSampler(Indices())).state_dict()["resumable"] is False
    sharded = loader(DistributedSampler(Indices(), 2, 1))
    _, remaining, state = stop(sharded, 2)
    later = loader(DistributedSampler(Indices(), 2, 1))
    with pytest.warns(ResumeWarning, match="without seed="):
        later.load_state_dict(state)
    assert plain(later) == remaining


@pytest.mark.parametrize("sampler", [TorchRandomSampler(Indices()), samplers.RandomSampler(SIZE)])
def test_state_of_shuffled_epoch_is_small(sampler):
    loader = DataLoader(Indices(), batch_size=BATCH, sampler=sampler)
    iterator = iter(loader)
    next(iterator)
    assert len(json.dumps(loader.state_dict())) < 10_000


class LazySampler(Sampler):
    """Applies a loaded state only at its first index, as torchdata's samplers do."""

    def __init__(self):
        self.num_yielded = 0
        self.next_yielded = None

    def __len__(self):
        return SIZE

    def __iter__(self):
        self.num_yielded = 0
        if self.next_yielded is not None:
            self.num_yielded = self.next_yielded
            self.next_yielded = None
        for index in range(self.num_yielded, SIZE):
            self.num_yielded += 1
            yield index

    def state_dict(self):
        return {"num_yielded": self.num_yielded}

    def load_state_dict(self, state):
        self.next_yielded = state["num_yielded"]


def load_lazy(state):
    loader = DataLoader(Indices(), batch_size=1, sampler=LazySampler())
    loader.load_state_dict(state)
    return loader


@pytest.fixture
def lazy_state():
    """The state of a loader over a `LazySampler` after five batches."""
    loader = DataLoader(Indices(), batch_size=1, sampler=LazySampler())
    return stop(loader, 5)[-1]


@pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning")
def test_state_saved_before_the_first_resumed_batch_holds_the_loaded_position(lazy_state):
    resumed = load_lazy(lazy_state)
    assert int(next(iter(resumed))) == 5
    assert [int(batch) for batch in load_lazy(resumed.state_dict(num_held=1))] == list(range(5, SIZE))


@pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning")
def test_interrupt_while_a_sampler_loads_its_state_keeps_the_position(lazy_state, monkeypatch):
    def interrupt(self, state):
        raise KeyboardInterrupt

    resumed = load_lazy(lazy_state)
    with monkeypatch.context() as patch:
        patch.setattr(LazySampler, "load_state_dict", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(iter(resumed))
    assert [int(batch) for batch in resumed] == list(range(5, SIZE))
