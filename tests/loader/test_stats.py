"""Statistics of a loader: times of stages with any kind of workers, counts, faults."""

from __future__ import annotations

import itertools
import os
import pickle
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset
from torchvision.transforms import v2

from lit_loader import DataLoader, DetectionDataset
from lit_loader.engine import WrappedBatches
from lit_loader.engine.stats import STAGES
from lit_loader.errors import BadSamplesWarning, WorkerRestartWarning
from lit_loader.foundation.stage_times import DECODING, READING, TRANSFORMING
from lit_loader.images import ImageReading, encoded_image
from lit_loader.images.jpeg_decoders import turbo_decoder
from lit_loader.loader import data_loader
from lit_loader.transforms import DecodeAwareCompose
from tests.support.drawn_set import draw_set
from tests.support.dying_sets import Dying

BACKENDS = {
    "inline": {},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
}
every_backend = pytest.mark.parametrize(
    "backend", [*itertools.islice(BACKENDS, 3), pytest.param("spawn", marks=pytest.mark.soak)]
)
PAUSE_S = 0.005


class Pausing(Dataset):
    """Samples that sleep in one stage, inside of all stages around it."""

    def __init__(self, stage, size=8):
        self.stage = stage
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.pause("sample")
        with TRANSFORMING:
            self.pause("transform")
            with DECODING:
                self.pause("decode")
                with READING:
                    self.pause("read")
        return torch.full((4,), index)

    def pause(self, stage):
        if stage == self.stage:
            time.sleep(PAUSE_S)

    def collate(self, samples):
        self.pause("collate")
        return torch.stack(samples)


def measured(*arguments, **options):
    loader = DataLoader(*arguments, **options)
    loader.stats()
    return loader


def consume(dataset, *, batch_size=2, seed=0, **options):
    loader = measured(dataset, batch_size, seed=seed, **options)
    start = time.perf_counter()
    batches = list(loader)
    return loader.stats(), batches, time.perf_counter() - start, loader.batch_records()


@every_backend
@pytest.mark.parametrize("stage", ["read", "decode", "transform", "sample", "collate"])
def test_time_counts_in_the_stage_in_which_it_passed(backend, stage):
    dataset = Pausing(stage)
    stats, _, _, _ = consume(dataset, collate_fn=dataset.collate, **BACKENDS[backend])
    num_pauses = 4 if stage == "collate" else 8
    assert max(stats.stage_s, key=stats.stage_s.__getitem__) == stage
    assert stats.stage_s[stage] >= num_pauses * PAUSE_S


@every_backend
@pytest.mark.parametrize("seed", [0, None])
def test_times_of_all_stages_are_no_longer_than_the_workers_lived(backend, seed):
    stats, batches, elapsed_s, records = consume(Pausing("decode"), seed=seed, **BACKENDS[backend])
    num_workers = max(stats.num_workers, 1)
    assert 8 * PAUSE_S <= sum(stats.stage_s.values()) + stats.idle_s <= elapsed_s * num_workers
    assert (stats.num_batches, stats.num_samples, len(batches)) == (4, 8, 4)
    assert 0 < stats.wait_s <= elapsed_s
    assert sorted(record.number for record in records) == [0, 1, 2, 3]
    for record in records:
        assert sum(record.stage_s.values()) == pytest.approx(record.end_s - record.start_s, abs=1e-6)
    for first, second in itertools.pairwise(sorted(records, key=lambda record: (record.worker, record.start_s))):
        # A worker makes one batch at a time.
        assert first.worker != second.worker or first.end_s <= second.start_s + 1e-6


@pytest.mark.parametrize("backend", ["inline", "threads", "fork"])
def test_measuring_begins_with_the_first_stats(backend):
    loader = DataLoader(Pausing("read", 12), 1, seed=0, persistent_workers=backend != "inline", **BACKENDS[backend])
    list(loader)
    start_stats = loader.stats()
    assert (start_stats.num_batches, start_stats.num_samples, start_stats.capacity) == (12, 0, 0)
    assert start_stats.wait_s > 0
    # Unmeasured times do not count later.
    assert sum(start_stats.stage_s.values()) == 0
    assert loader.batch_records() == []
    list(loader)
    period = loader.stats() - start_stats
    # Workers have made the first six batches already.
    num_measured = 12 if backend == "inline" else 6
    assert (period.num_batches, period.num_samples) == (12, num_measured)
    assert len(loader.batch_records()) == num_measured
    assert num_measured * PAUSE_S <= period.stage_s["read"]
    # Nor do they count as missing.
    assert 0 <= period.ready_batches <= period.capacity <= 6 * 6
    loader.close()


@pytest.mark.parametrize("collated_samples", [torch.tensor(3), {"a": [1, 2], "b": [3, 4], "c": [5, 6]}])
def test_batch_of_any_type_counts_its_indices(collated_samples):
    class Whole(Pausing):
        def __getitems__(self, indices):
            return collated_samples

    stats, batches, _, _ = consume(Whole(None), collate_fn=lambda samples: samples)
    assert (stats.num_samples, len(batches)) == (8, 4)


def test_threads_may_share_a_measured_iterator_without_workers():
    iterator = iter(measured(Pausing("read", 16), 2, seed=0))
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: next(iterator), range(8)))
    assert sorted(torch.cat(batches)[:, 0].tolist()) == list(range(16))


def test_records_number_batches_of_a_resumed_epoch_from_its_start():
    loader = DataLoader(Pausing(None), 2, seed=0)
    iterator = iter(loader)
    next(iterator)
    resumed = measured(Pausing(None), 2, seed=0)
    resumed.load_state_dict(loader.state_dict())
    list(resumed)
    assert [record.number for record in resumed.batch_records()] == [1, 2, 3]


def test_records_are_bounded_and_sums_are_not():
    loader = measured(range(1000), 1, seed=0)
    list(loader)
    assert (len(loader.batch_records()), loader.stats().num_samples) == (256, 1000)
    assert loader.batch_records()[-1].number == 999


@pytest.mark.parametrize("backend", ["threads", "fork"])
def test_slow_consumer_finds_batches_ready_and_fast_one_does_not(backend):
    options = BACKENDS[backend]
    slow = measured(range(24), 1, seed=0, **options)
    for _ in slow:
        time.sleep(0.01)
    fast = measured(Pausing("sample", 24), 1, seed=0, **options)
    list(fast)
    slow_stats = slow.stats()
    fast_stats = fast.stats()
    # Six batches in flight, fewer at the end.
    assert slow_stats.capacity == fast_stats.capacity == 19 * 6 + 5 + 4 + 3 + 2 + 1
    assert fast_stats.ready_batches < 0.5 * fast_stats.capacity
    assert 0.5 * slow_stats.capacity < slow_stats.ready_batches <= slow_stats.capacity


def test_loader_without_workers_has_no_ready_batches():
    stats, _, _, _ = consume(Pausing(None))
    assert (stats.ready_batches, stats.capacity, stats.received_bytes) == (0, 0, 0)
    assert stats.idle_s < PAUSE_S


def test_bytes_of_batches_from_processes_are_counted_in_slots_and_pipes():
    class Large(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.zeros(64, 1024), index

    stats, _, _, _ = consume(Large(), **BACKENDS["fork"])
    num_bytes = 4 * 64 * 1024 * 4
    assert num_bytes < stats.received_bytes < num_bytes + 10_000


def test_killed_worker_keeps_the_sums_of_its_batches(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        stats, batches, _, records = consume(Dying(24, tmp_path, {13: "kill"}, side=4), **BACKENDS["fork"])
    assert (stats.num_restarts, stats.num_batches, len(batches)) == (1, 12, 12)
    # The batch that was lost is not among them.
    assert stats.num_samples == 24
    assert sorted(record.number for record in records) == list(range(12))


def test_bad_samples_are_counted_over_epochs():
    class Bad(Pausing):
        def __getitem__(self, index):
            if index == 3:
                raise ValueError("bad")
            return index

    loader = measured(Bad(None), 2, seed=0, on_bad_sample="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadSamplesWarning)
        list(loader)
        list(loader)
    stats = loader.stats()
    assert (stats.num_bad_samples, stats.num_samples, stats.num_batches) == (2, 14, 8)


def test_error_of_a_sample_keeps_the_times_before_it():
    class Failing(Pausing):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            if index == 3:
                raise ValueError("bad")
            return sample

    loader = measured(Failing("read"), 2, seed=0, **BACKENDS["threads"])
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    assert len(list(iterator)) == 2
    stats = loader.stats()
    assert (stats.num_batches, stats.num_samples) == (3, 6)
    assert stats.stage_s["read"] >= 8 * PAUSE_S


@pytest.mark.parametrize("backend", ["inline", "fork"])
def test_iterable_dataset_is_measured(backend):
    class Stream(IterableDataset):
        def __iter__(self):
            for index in range(4):
                with DECODING:
                    time.sleep(PAUSE_S)
                yield index

    stats, batches, _, _ = consume(Stream(), **BACKENDS[backend])
    assert stats.num_samples == 2 * len(batches)
    assert max(stats.stage_s, key=stats.stage_s.__getitem__) == "decode"


def test_batch_of_a_nested_loader_is_time_in_the_dataset():
    class Nested(Dataset):
        def __init__(self):
            self.inner = measured(Pausing("read", 2), 2, seed=0)

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return next(iter(self.inner))

    dataset = Nested()
    stats, _, _, _ = consume(dataset, batch_size=1)
    assert stats.stage_s["read"] == 0
    assert stats.stage_s["sample"] >= 6 * PAUSE_S
    assert dataset.inner.stats().stage_s["read"] >= 6 * PAUSE_S


def test_transfer_is_measured_without_the_engine_and_without_earlier_work_of_the_device(monkeypatch):
    class Transfer(WrappedBatches):
        def next_batch(self):
            batch = super().next_batch()
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            time.sleep(4 * PAUSE_S)
            self.device_wait_s += time.perf_counter() - start
            return batch

    monkeypatch.setattr(data_loader, "make_transfer", lambda *_, **__: Transfer)
    stats, _, _, _ = consume(Pausing("sample"))
    assert stats.num_batches == 4
    assert 4 * PAUSE_S <= stats.transfer_s < 12 * PAUSE_S
    assert stats.wait_s >= 8 * PAUSE_S


def test_pickled_loader_begins_at_zero():
    loader = DataLoader(range(8), 2, seed=0)
    list(loader)
    copy = pickle.loads(pickle.dumps(loader))
    list(copy)
    assert (loader.stats().num_batches, copy.stats().num_batches) == (4, 4)


def test_fork_of_the_main_process_counts_for_itself():
    loader = DataLoader(range(8), 2, seed=0)
    list(loader)
    pid = os.fork()
    if pid == 0:
        list(loader)
        os._exit(loader.stats().num_batches)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 8
    assert loader.stats().num_batches == 4


def test_detection_dataset_reads_decodes_and_transforms(tmp_path):
    dataset = DetectionDataset(draw_set(tmp_path), transforms=slow_transform)
    stats, _, _, _ = consume(dataset, batch_size=1, collate_fn=list)
    assert stats.read_bytes == sum(dataset.sample_path(index).stat().st_size for index in range(len(dataset)))
    assert stats.stage_s["transform"] >= len(dataset) * PAUSE_S
    assert all(stats.stage_s[stage] > 0 for stage in STAGES if stage != "send")


def test_pixels_that_a_transform_asks_for_are_decoding(tmp_path, monkeypatch):
    def slow_decoder():
        time.sleep(PAUSE_S)
        return turbo_decoder()

    monkeypatch.setattr(encoded_image, "turbo_decoder", slow_decoder)
    table = draw_set(tmp_path)
    for index in range(table.num_images):
        # The content decides the format, and only JPEG is decoded on demand.
        path = table.image_path(index)
        Image.open(path).save(path, format="JPEG")
    dataset = DetectionDataset(
        table, transforms=DecodeAwareCompose([v2.Resize((32, 32))]), reading=ImageReading(decode="fast")
    )
    stats, _, _, _ = consume(dataset, batch_size=1, collate_fn=list)
    assert stats.stage_s["decode"] >= len(dataset) * PAUSE_S > stats.stage_s["transform"]


def slow_transform(image, target):
    time.sleep(PAUSE_S)
    return image, target
