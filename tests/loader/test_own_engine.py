"""Guarantee: the engine is our own; torch's iterators are never used."""

from __future__ import annotations

import pytest
import torch.utils.data.dataloader as torch_dataloader

from lit_loader import DataLoader
from tests.support.toys import Drawing, Stream


@pytest.fixture(autouse=True)
def _torch_iterators_raise(monkeypatch):
    class Forbidden:
        def __init__(self, *args, **kwargs):
            raise AssertionError("torch's own iterator was used")

    monkeypatch.setattr(torch_dataloader, "_SingleProcessDataLoaderIter", Forbidden)
    monkeypatch.setattr(torch_dataloader, "_MultiProcessingDataLoaderIter", Forbidden)
    monkeypatch.setattr(torch_dataloader, "_BaseDataLoaderIter", Forbidden)


def test_the_fixture_does_forbid_torchs():
    with pytest.raises(AssertionError, match="torch's own iterator"):
        iter(torch_dataloader.DataLoader(Drawing()))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("dataset", [Drawing(8), Stream(4)], ids=["map", "iterable"])
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 2, "in_order": False}],
    ids=str,
)
def test_every_mode_runs_on_our_engine(seed, dataset, batch_size, workers):
    loader = DataLoader(dataset, batch_size=batch_size, seed=seed, **workers)
    lengths = [len(list(loader)) for _ in range(2)]
    assert lengths[0] == lengths[1] > 0
    loader.close()
