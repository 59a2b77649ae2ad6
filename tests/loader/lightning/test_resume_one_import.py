"""Guarantee: with one changed import, a run of torch's loader never crashes on resuming, and continues where it can."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, WeightedRandomSampler

from lit_loader import DataLoader
from lit_loader.callbacks import ResumeLoaders
from lit_loader.errors import NotResumableWarning, ResumeWarning
from tests.support.lightning_resuming import Learner, Save, fitted
from tests.support.resume_sets import BATCH, SIZE, Numbers, StatefulStream

pytestmark = [
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
    pytest.mark.filterwarnings("ignore::lit_loader.errors.NotResumableWarning"),
]
STOP = 3
EPOCHS = 2


class Plain(IterableDataset):
    """Has no state."""

    def __iter__(self):
        return iter([torch.tensor([float(n), 0.0, 0.0], dtype=torch.float64) for n in range(SIZE)])


MAKES = {
    "shuffle": lambda kind, **more: kind(Numbers(), BATCH, shuffle=True, **more),
    "shuffle, workers": lambda kind, **more: kind(
        Numbers(), BATCH, shuffle=True, num_workers=2, persistent_workers=True, **more
    ),
    "weighted": lambda kind, **more: kind(Numbers(), BATCH, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE), **more),
    "stream": lambda kind, **more: kind(Plain(), BATCH, **more),
    "stream, workers": lambda kind, **more: kind(Plain(), BATCH, num_workers=2, **more),
    "stream with state": lambda kind, **more: kind(StatefulStream(), BATCH, **more),
}


def indices(model):
    """Return the first number of each sample, a batch a list: which samples the model was trained on."""
    return [batch[:, 0].tolist() for batch in model.seen]


def run(make, kind, *callbacks, ckpt_path=None, **more):
    torch.manual_seed(5)
    model = Learner(lambda: make(kind, **more))
    return fitted(model, callbacks=callbacks, ckpt_path=ckpt_path, max_epochs=EPOCHS)


def checkpoint(make, folder, kind, *callbacks, **more):
    """Return the batches of an unbroken run, and its checkpoint in the middle of the first epoch."""
    save = Save(folder)
    unbroken = run(make, kind, *callbacks, save, **more)
    path = next(path for num_seen, path in save.saved if num_seen == STOP)
    return indices(unbroken), path


@pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning")
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", MAKES)
def test_a_run_goes_on_in_the_middle_of_its_epoch(name, seed, tmp_path):
    unbroken, path = checkpoint(MAKES[name], tmp_path, DataLoader, seed=seed)
    actual = indices(run(MAKES[name], DataLoader, ckpt_path=path, seed=seed))
    # of a loader without a length Lightning fetches one batch more than it has trained on when it saves the state
    remaining = unbroken[STOP + ("stream" in name) : len(unbroken) // EPOCHS]
    assert actual[: len(remaining)] == remaining
    if seed is not None:
        assert actual == unbroken[len(unbroken) - len(actual) :]


@pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning")
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", [name for name in MAKES if "stream" in name])
def test_with_the_callback_a_stream_goes_on_with_the_very_next_batch(name, seed, tmp_path):
    unbroken, path = checkpoint(MAKES[name], tmp_path, DataLoader, ResumeLoaders(), seed=seed)
    actual = indices(run(MAKES[name], DataLoader, ResumeLoaders(), ckpt_path=path, seed=seed))
    assert actual == unbroken[STOP:]


@pytest.mark.parametrize("name", ["shuffle", "stream"])
def test_a_checkpoint_of_torchs_loader_is_gone_on_with_as_torchs_does(name, tmp_path):
    _, path = checkpoint(MAKES[name], tmp_path, TorchDataLoader)
    torchs = run(MAKES[name], TorchDataLoader, ckpt_path=path)
    ours = run(MAKES[name], DataLoader, ckpt_path=path)
    assert indices(ours) == indices(torchs)


@pytest.mark.parametrize("seed", [None, 3])
def test_unresumable_state_starts_the_epoch_over_with_the_reason(seed, tmp_path):
    make = MAKES["shuffle, workers"]
    with pytest.warns(NotResumableWarning, match="in_order=False"):
        _, path = checkpoint(make, tmp_path, DataLoader, in_order=False, seed=seed)
    with pytest.warns(ResumeWarning, match=r"its epoch starts over\. .*in_order=False"):
        model = run(make, DataLoader, ckpt_path=path, in_order=False, seed=seed)
    assert len(indices(model)) > 0
    state = torch.load(path, weights_only=True)["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]
    assert state["resumable"] is False
    if seed is not None:
        with pytest.raises(ValueError, match="cannot be resumed"):
            make(DataLoader, seed=seed).load_state_dict(state, strict=True)


def test_another_worker_count_without_a_seed_begins_the_stream_anew(tmp_path):
    _, path = checkpoint(MAKES["stream"], tmp_path, DataLoader)
    with pytest.warns(ResumeWarning, match=r"its epoch starts over\. .*num_workers="):
        model = run(MAKES["stream, workers"], DataLoader, ckpt_path=path)
    assert indices(model)[0] == [0.0, 1.0, 2.0, 3.0]
