"""Intended differences from torch: each with its reason, and asserted for both classes."""

from __future__ import annotations

import copy
import os
import signal
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from lit_loader import DataLoader
from lit_loader.errors import UnsendableBatchError, WorkerDiedError
from tests.support.collate_samples import CHANGED_BY_TORCHS_WORKERS, OTHERWISE_IN_TORCHS_WORKERS, SAMPLES
from tests.support.parity_backends import FORK, THREAD, described, each_of, error_of, events
from tests.support.parity_datasets import Count, Numbers, Raising, Samples, as_is

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about DataPipes and types of tensors

ONE = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60}


def both(show):
    """Return what ``show(class)`` returns for torch's class and for lit_loader's."""
    return show(TorchDataLoader), show(DataLoader)


class Zeros:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(2)


def test_datapipes_are_refused():
    """Torch has deprecated them; their seeds and shards are a second protocol next to the dataset's."""
    assert list(TorchDataLoader(IterableWrapper([1, 2]), batch_size=None)) == [1, 2]
    with pytest.raises(TypeError, match="DataPipe"):
        DataLoader(IterableWrapper([1, 2]))


def test_seeded_loader_shows_the_sampler_of_its_batch_sampler():
    """Torch's loader has a sequential one, which misleads Lightning; see `lit_loader.loader.lightning`."""
    batch_sampler = BatchSampler(RandomSampler(Numbers(), num_samples=3), 2, False)
    for kind in (TorchDataLoader, DataLoader):
        assert type(kind(Numbers(), batch_sampler=batch_sampler).sampler) is SequentialSampler
    assert DataLoader(Numbers(), batch_sampler=batch_sampler, seed=1).sampler is batch_sampler.sampler


def fails(worker):
    raise ArithmeticError("not ready")


@pytest.mark.soak
def test_workers_of_a_fork_server_have_the_default_dtype_of_the_main_process():
    """Torch's workers have it only under fork, so that the dtype of batches depends on the start method."""
    torch.set_default_dtype(torch.float64)
    try:
        settings = {**ONE, "multiprocessing_context": "forkserver"}
        dtypes = [next(iter(kind(Zeros(), **settings))).dtype for kind in (DataLoader, TorchDataLoader)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert dtypes == [torch.float64, torch.float32]


def test_a_failed_worker_init_fn_fails_every_batch_with_its_own_error():
    """Torch raises it once; then its worker has no fetcher and raises an error of its own code."""
    torchs, ours = both(lambda kind: events(iter(kind(Numbers(3), worker_init_fn=fails, **ONE))))
    assert [item[1] for item in torchs[:3]] == ["ArithmeticError", "UnboundLocalError", "UnboundLocalError"]
    assert [item[1] for item in ours[:3]] == ["ArithmeticError"] * 3
    assert torchs[0] == ours[0] == ours[2]


@pytest.mark.parametrize("workers", [{}, ONE, {"num_workers": 1, "worker_method": "thread"}])
def test_error_of_a_sample_names_the_sample(workers):
    """Torch does not name the sample; lit_loader adds a note, after the traceback if there is one."""
    error = error_of(next, iter(DataLoader(Raising([KeyError("a key")]), **workers)))
    assert [*str(error).splitlines(), *getattr(error, "__notes__", ())][-1] == "sample 0"
    if "worker_method" not in workers:
        torchs = error_of(next, iter(TorchDataLoader(Raising([KeyError("a key")]), **workers)))
        assert "sample" not in [*str(torchs).splitlines(), *getattr(torchs, "__notes__", ())][-1]


class Broken(Count):
    def __iter__(self):
        raise ValueError("no stream")


def test_iterable_dataset_that_cannot_be_iterated_fails_every_batch_with_its_own_error():
    """The same gap in torch's worker."""
    for kind, later_error in ((TorchDataLoader, "UnboundLocalError"), (DataLoader, "ValueError")):
        iterator = iter(kind(Broken(), **ONE))
        assert [type(error_of(next, iterator)).__name__ for _ in range(3)] == ["ValueError", later_error, later_error]


class Dying(Numbers):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_death_of_a_worker_names_pid_and_signal():
    """Torch's message has the pid; the signal shows whether memory ran out."""
    torchs, ours = both(lambda kind: error_of(next, iter(kind(Dying(), **ONE))))
    assert type(torchs) is RuntimeError
    assert type(ours) is WorkerDiedError
    assert isinstance(ours, RuntimeError)
    for error in (torchs, ours):
        assert "DataLoader worker (pid" in str(error)
    assert "SIGKILL" in str(ours)


@each_of(FORK, THREAD)
@pytest.mark.parametrize("name", OTHERWISE_IN_TORCHS_WORKERS)
def test_batches_of_workers_are_collated_like_inline_batches(backend, name):
    """Torch's workers stack into shared memory, which fails, or casts, where torch inline does not."""
    arguments = {"batch_size": len(SAMPLES[name]())}
    inline = events(iter(TorchDataLoader(Samples(SAMPLES[name]()), **arguments)))
    torchs, ours = (
        events(iter(kind(Samples(SAMPLES[name]()), **arguments, **workers))) for kind, workers in backend.both
    )
    assert without_worker(torchs) != inline
    assert without_worker(ours) == inline


def without_worker(actual):
    """Return events with the errors of workers in their inline form."""
    return [
        (item[0], item[1], item[2].split(" ... ")[1].removeprefix(f"{item[1]}: "))
        if item[0] == "raised" and " ... " in item[2]
        else item
        for item in actual
    ]


@pytest.mark.parametrize("name", CHANGED_BY_TORCHS_WORKERS)
def test_tensors_that_torchs_shared_memory_changes_arrive_unchanged(name):
    """Torch sends the storage, without the conjugation, the sign or the quantizer."""
    sample = SAMPLES[name]()[0]
    torchs, ours = both(lambda kind: events(iter(kind([sample], batch_size=None, **ONE))))
    assert torchs[0] != described(sample)
    assert ours[0] == described(sample)


def views(samples):
    unbroken = torch.arange(6.0).view(2, 3)
    return [unbroken, unbroken[0], unbroken.t(), unbroken]


def test_views_of_one_tensor_arrive_with_separate_memory():
    """Torch shares storages between processes; lit_loader sends values (the same tensor twice stays one tensor)."""
    for kind, shared in ((TorchDataLoader, True), (DataLoader, False)):
        (batch,) = kind([0], collate_fn=views, **ONE)
        assert described(batch) == described(views(None))
        assert batch[3] is batch[0]
        assert (batch[1].untyped_storage().data_ptr() == batch[0].untyped_storage().data_ptr()) is shared


def test_batch_that_cannot_be_pickled_raises():
    """Torch's queue prints the error in the worker, and the main process waits, here until its timeout."""
    arguments = {"collate_fn": lambda samples: lambda: samples, **ONE}
    assert "timed out" in str(error_of(next, iter(TorchDataLoader(Numbers(1), **{**arguments, "timeout": 0.5}))))
    error = error_of(next, iter(DataLoader(Numbers(1), **arguments)))
    assert type(error) is UnsendableBatchError
    assert "in DataLoader worker process 0" in str(error)


LEAF = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("samples", "batch_size"), [([LEAF * 2], None), ([LEAF, LEAF], 2)], ids=["of the sample", "of the collated batch"]
)
def test_tensor_with_a_graph_raises_in_worker_processes(samples, batch_size):
    """Torch's queue refuses it as well, but the main process waits; threads send nothing, and keep the graph."""
    arguments = {"batch_size": batch_size, **ONE}
    torchs = error_of(next, iter(TorchDataLoader(Samples(samples), **{**arguments, "timeout": 0.5})))
    assert type(torchs) is RuntimeError
    ours = events(iter(DataLoader(Samples(samples), **arguments)))
    assert ours[0][:2] == ("raised", "UnsendableBatchError")
    assert issubclass(UnsendableBatchError, RuntimeError)
    assert "in DataLoader worker process 0" in ours[0][2]
    (batch,) = DataLoader(Samples(samples), batch_size=batch_size, **THREAD.ours)
    assert batch.grad_fn is not None


def test_error_whose_class_cannot_be_pickled_is_raised_as_runtime_error():
    """The same gap in torch's queue."""

    class Local(Exception):
        pass

    dataset = Raising([Local("here")])
    assert "timed out" in str(error_of(next, iter(TorchDataLoader(dataset, **{**ONE, "timeout": 0.5}))))
    error = error_of(next, iter(DataLoader(dataset, **ONE)))
    assert type(error) is RuntimeError
    assert str(error).startswith("Caught Local in DataLoader worker process 0.")


def test_error_that_cannot_be_built_from_a_message_keeps_its_type():
    """Torch raises a RuntimeError instead, or the error of a constructor that takes other arguments."""
    dataset = Raising([UnicodeDecodeError("utf-8", b"x", 0, 1, "why")])
    torchs, ours = both(lambda kind: error_of(next, iter(kind(dataset, **ONE))))
    assert type(torchs) is RuntimeError
    assert (type(ours), ours.args) == (UnicodeDecodeError, ("utf-8", b"x", 0, 1, "why"))
    dataset = Raising([ExceptionGroup("several", [ValueError("one of them")])])
    torchs, ours = both(lambda kind: error_of(next, iter(kind(dataset, **ONE))))
    assert type(torchs) is TypeError
    assert "one of them" not in str(torchs)
    assert (type(ours), str(ours.exceptions)) == (ExceptionGroup, "(ValueError('one of them'),)")
    assert "one of them" in ours.__notes__[-1]


class Fails:
    def __iter__(self):
        yield from (0, 1, 2)
        raise LookupError("the sampler broke")


def test_error_of_a_sampler_follows_the_batches_before_it_in_workers():
    """Torch raises it while it returns a batch, which is lost."""
    inline = [described(index) for index in range(3)] + [("raised", "LookupError", "the sampler broke"), "end", "end"]
    arguments = {"sampler": Fails(), "batch_size": None}
    assert events(iter(DataLoader(Numbers(), **arguments))) == inline
    for backend in (FORK, THREAD):
        assert events(iter(DataLoader(Numbers(), **arguments, **backend.ours))) == inline
    torchs = events(iter(TorchDataLoader(Numbers(), **arguments, **ONE)))
    assert [item[1] for item in torchs].count("LookupError") == 1
    assert len(torchs) < len(inline)


def test_batches_of_workers_are_not_in_torchs_shared_memory():
    """So they do not depend on the size of the system's shared memory."""
    for kind, shared in ((TorchDataLoader, True), (DataLoader, False)):
        (batch,) = kind([torch.ones(3)], **ONE)
        assert batch.is_shared() is shared


@pytest.mark.parametrize("persistent", [False, True])
def test_loader_with_a_live_iterator_can_be_copied(persistent):
    """Torch's loader has its persistent iterator as an attribute, which cannot be pickled."""
    for kind in (TorchDataLoader, DataLoader):
        loader = kind(Numbers(4), **ONE, persistent_workers=persistent)
        iterator = iter(loader)
        next(iterator)
        if persistent and kind is TorchDataLoader:
            assert type(error_of(copy.deepcopy, loader)) is NotImplementedError
        else:
            assert [batch.item() for batch in copy.deepcopy(loader)] == [0, 1, 2, 3]
        assert [batch.item() for batch in iterator] == [1, 2, 3]
        loader._iterator = None


def test_array_keeps_its_byte_order():
    """Before Python 3.14 torch's workers use an older pickle protocol, in which numpy converts to the native order."""
    torchs_order = "=" if sys.version_info < (3, 14) else ">"
    samples = [np.arange(5000, dtype=">i4"), np.arange(5, dtype=">f8")]
    for kind, order in ((TorchDataLoader, torchs_order), (DataLoader, ">")):
        actual = list(kind(Samples(samples), batch_size=None, collate_fn=as_is, **ONE))
        assert [array.dtype.byteorder for array in actual] == [order, order]
        assert all((array == sample).all() for array, sample in zip(actual, samples, strict=True))


@pytest.mark.parametrize(("seed", "changed_seed"), [(None, 1), (1, None)])
def test_seed_cannot_be_added_or_removed_after_construction(seed, changed_seed):
    loader = DataLoader(range(4), seed=seed)
    loader.seed = changed_seed
    with pytest.raises(ValueError, match="make a new loader"):
        list(loader)
