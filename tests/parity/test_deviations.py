"""Where we knowingly differ from torch: each with its reason, and asserted on both sides."""

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
from tests.support.parity_datasets import Count, Numbers, Raising, Samples

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch, of DataPipes and of kinds of tensors

ONE = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60}


class Zeros:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(2)


def test_datapipes_are_refused():
    """Torch has deprecated them; their seeds and shards are a second protocol beside the dataset's."""
    assert list(TorchDataLoader(IterableWrapper([1, 2]), batch_size=None)) == [1, 2]
    with pytest.raises(TypeError, match="DataPipe"):
        DataLoader(IterableWrapper([1, 2]))


def test_seeded_loader_shows_the_sampler_of_its_batch_sampler():
    """Torch's loader shows one in order, by which Lightning is misled; see `lit_loader.loader.lightning`."""
    own = BatchSampler(RandomSampler(Numbers(), num_samples=3), 2, False)
    torchs = TorchDataLoader(Numbers(), batch_sampler=own).sampler
    assert type(torchs) is SequentialSampler
    assert DataLoader(Numbers(), batch_sampler=own, seed=1).sampler is own.sampler
    assert type(DataLoader(Numbers(), batch_sampler=own).sampler) is SequentialSampler


def fails(worker):
    raise ArithmeticError("not ready")


@pytest.mark.soak
def test_workers_of_a_fork_server_have_the_default_dtype_of_the_main_process():
    """Torch's have it only under fork, so that the start method decides on the dtype of batches."""
    torch.set_default_dtype(torch.float64)
    try:
        settings = {**ONE, "multiprocessing_context": "forkserver"}
        dtypes = [next(iter(kind(Zeros(), **settings))).dtype for kind in (DataLoader, TorchDataLoader)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert dtypes == [torch.float64, torch.float32]


def test_a_failed_worker_init_fn_fails_every_batch_with_its_own_error():
    """Torch tells it once; then the worker has no fetcher, and says so in the words of its own code."""
    torchs, ours = (
        events(iter(kind(Numbers(3), worker_init_fn=fails, **ONE))) for kind in (TorchDataLoader, DataLoader)
    )
    assert [item[1] for item in torchs[:3]] == ["ArithmeticError", "UnboundLocalError", "UnboundLocalError"]
    assert [item[1] for item in ours[:3]] == ["ArithmeticError"] * 3
    assert torchs[0] == ours[0] == ours[2]


@pytest.mark.parametrize("workers", [{}, ONE, {"num_workers": 1, "worker_method": "thread"}])
def test_an_error_of_a_sample_names_the_sample(workers):
    """Torch does not name the sample; lit_loader adds a note, after the traceback if there is one."""
    error = error_of(next, iter(DataLoader(Raising([KeyError("a key")]), **workers)))
    assert [*str(error).splitlines(), *getattr(error, "__notes__", ())][-1] == "sample 0"
    if "worker_method" not in workers:
        torchs = error_of(next, iter(TorchDataLoader(Raising([KeyError("a key")]), **workers)))
        assert "sample" not in [*str(torchs).splitlines(), *getattr(torchs, "__notes__", ())][-1]


class Broken(Count):
    def __iter__(self):
        raise ValueError("no stream")


def test_an_iterable_dataset_that_cannot_be_iterated_fails_each_batch_with_its_own_error():
    """The same hole in torch's worker."""
    for kind, then in ((TorchDataLoader, "UnboundLocalError"), (DataLoader, "ValueError")):
        iterator = iter(kind(Broken(), **ONE))
        assert [type(error_of(next, iterator)).__name__ for _ in range(3)] == ["ValueError", then, then]


class Dying(Numbers):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_workers_death_names_pid_and_signal():
    """Torch's message has the pid; which signal it was says whether memory ran out."""
    torchs, ours = (error_of(next, iter(kind(Dying(), **ONE))) for kind in (TorchDataLoader, DataLoader))
    assert type(torchs) is RuntimeError
    assert type(ours) is WorkerDiedError
    assert isinstance(ours, RuntimeError)
    for error in (torchs, ours):
        assert "DataLoader worker (pid" in str(error)
    assert "SIGKILL" in str(ours)


@each_of(FORK, THREAD)
@pytest.mark.parametrize("name", OTHERWISE_IN_TORCHS_WORKERS)
def test_workers_collate_what_is_collated_inline(backend, name):
    """Torch's workers stack into shared memory, which fails, or casts, where torch inline does not."""
    arguments = {"batch_size": len(SAMPLES[name]())}
    inline = events(iter(TorchDataLoader(Samples(SAMPLES[name]()), **arguments)))
    torchs, ours = (
        events(iter(kind(Samples(SAMPLES[name]()), **arguments, **workers))) for kind, workers in backend.both
    )
    assert without_place(torchs) != inline
    assert without_place(ours) == inline


def without_place(actual):
    """Return events with a worker's errors in the form that they have inline."""
    return [
        (item[0], item[1], item[2].split(" ... ")[1].removeprefix(f"{item[1]}: "))
        if item[0] == "raised" and " ... " in item[2]
        else item
        for item in actual
    ]


@pytest.mark.parametrize("name", CHANGED_BY_TORCHS_WORKERS)
def test_tensors_that_torchs_shared_memory_changes_arrive_as_they_were(name):
    """Torch sends the storage, and forgets the conjugation, the sign or the quantizer."""
    sample = SAMPLES[name]()[0]
    torchs, ours = (events(iter(kind([sample], batch_size=None, **ONE))) for kind in (TorchDataLoader, DataLoader))
    assert torchs[0] != described(sample)
    assert ours[0] == described(sample)


def views(samples):
    unbroken = torch.arange(6.0).view(2, 3)
    return [unbroken, unbroken[0], unbroken.t(), unbroken]


def test_views_of_one_tensor_arrive_with_memory_of_their_own():
    """Torch shares storages between processes; lit_loader sends a tensor's values (the same tensor twice stays one)."""
    for kind, shared in ((TorchDataLoader, True), (DataLoader, False)):
        (batch,) = kind([0], collate_fn=views, **ONE)
        assert described(batch) == described(views(None))
        assert batch[3] is batch[0]
        assert (batch[1].untyped_storage().data_ptr() == batch[0].untyped_storage().data_ptr()) is shared


def test_a_batch_that_cannot_be_pickled_is_an_error():
    """Torch's queue prints it in the worker, and the main process waits for ever: here until its timeout."""
    arguments = {"collate_fn": lambda samples: lambda: samples, **ONE}
    assert "timed out" in str(error_of(next, iter(TorchDataLoader(Numbers(1), **{**arguments, "timeout": 0.5}))))
    error = error_of(next, iter(DataLoader(Numbers(1), **arguments)))
    assert type(error) is UnsendableBatchError
    assert "in DataLoader worker process 0" in str(error)


LEAF = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("samples", "batch_size"), [([LEAF * 2], None), ([LEAF, LEAF], 2)], ids=["made so", "collated so"]
)
def test_a_tensor_that_would_lose_its_graph_on_the_way_is_an_error(samples, batch_size):
    """Torch's queue refuses it too, but leaves the main process waiting; threads send nothing, and keep it."""
    arguments = {"batch_size": batch_size, **ONE}
    torchs = error_of(next, iter(TorchDataLoader(Samples(samples), **{**arguments, "timeout": 0.5})))
    assert type(torchs) is RuntimeError
    ours = events(iter(DataLoader(Samples(samples), **arguments)))
    assert ours[0][:2] == ("raised", "UnsendableBatchError")
    assert issubclass(UnsendableBatchError, RuntimeError)
    assert "in DataLoader worker process 0" in ours[0][2]
    (batch,) = DataLoader(Samples(samples), batch_size=batch_size, **THREAD.ours)
    assert batch.grad_fn is not None


def test_an_error_whose_class_cannot_be_pickled_is_told():
    """The same hole in torch's queue."""

    class Local(Exception):
        pass

    dataset = Raising([Local("here")])
    assert "timed out" in str(error_of(next, iter(TorchDataLoader(dataset, **{**ONE, "timeout": 0.5}))))
    error = error_of(next, iter(DataLoader(dataset, **ONE)))
    assert type(error) is RuntimeError
    assert str(error).startswith("Caught Local in DataLoader worker process 0.")


def test_an_error_that_takes_no_message_alone_comes_as_itself():
    """Torch makes a RuntimeError of it, or with ``message`` among the class's attributes raises what that raises."""
    dataset = Raising([UnicodeDecodeError("utf-8", b"x", 0, 1, "why")])
    torchs, ours = (error_of(next, iter(kind(dataset, **ONE))) for kind in (TorchDataLoader, DataLoader))
    assert type(torchs) is RuntimeError
    assert (type(ours), ours.args) == (UnicodeDecodeError, ("utf-8", b"x", 0, 1, "why"))
    dataset = Raising([ExceptionGroup("several", [ValueError("one of them")])])
    torchs, ours = (error_of(next, iter(kind(dataset, **ONE))) for kind in (TorchDataLoader, DataLoader))
    assert type(torchs) is TypeError
    assert "one of them" not in str(torchs)
    assert (type(ours), str(ours.exceptions)) == (ExceptionGroup, "(ValueError('one of them'),)")
    assert "one of them" in ours.__notes__[-1]


class Fails:
    def __iter__(self):
        yield from (0, 1, 2)
        raise LookupError("the sampler broke")


def test_a_samplers_error_in_workers_comes_after_the_batches_before_it():
    """Torch raises it while it hands out a batch, which is lost."""
    inline = [described(index) for index in range(3)] + [("raised", "LookupError", "the sampler broke"), "end", "end"]
    arguments = {"sampler": Fails(), "batch_size": None}
    assert events(iter(DataLoader(Numbers(), **arguments))) == inline
    for backend in (FORK, THREAD):
        assert events(iter(DataLoader(Numbers(), **arguments, **backend.ours))) == inline
    torchs = events(iter(TorchDataLoader(Numbers(), **arguments, **ONE)))
    assert [item[1] for item in torchs].count("LookupError") == 1
    assert len(torchs) < len(inline)


def test_batches_of_workers_are_not_in_torchs_shared_memory():
    """They need none, whatever the size of the system's shared memory."""
    for kind, shared in ((TorchDataLoader, True), (DataLoader, False)):
        (batch,) = kind([torch.ones(3)], **ONE)
        assert batch.is_shared() is shared


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_is_iterated_can_be_copied_and_pickled(persistent):
    """Torch's keeps its persistent iterator as a part of itself, which cannot be pickled."""
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


def as_is(sample):
    return sample


def test_an_array_keeps_its_byte_order():
    """Before Python 3.14 torch's workers send it in an older way, in which numpy turns it into the machine's own."""
    of_torch = "=" if sys.version_info < (3, 14) else ">"
    samples = [np.arange(5000, dtype=">i4"), np.arange(5, dtype=">f8")]
    for kind, order in ((TorchDataLoader, of_torch), (DataLoader, ">")):
        actual = list(kind(Samples(samples), batch_size=None, collate_fn=as_is, **ONE))
        assert [array.dtype.byteorder for array in actual] == [order, order]
        assert all((array == sample).all() for array, sample in zip(actual, samples, strict=True))


@pytest.mark.parametrize(("seed", "changed_seed"), [(None, 1), (1, None)])
def test_a_loader_cannot_get_or_lose_its_seed(seed, changed_seed):
    loader = DataLoader(range(4), seed=seed)
    loader.seed = changed_seed
    with pytest.raises(ValueError, match="make a new loader"):
        list(loader)
