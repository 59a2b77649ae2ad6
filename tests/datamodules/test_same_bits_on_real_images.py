"""Guarantee: the same bits on real images too, augmentation included (the whole matrix is in tests/soak)."""

from __future__ import annotations

import pytest

from lit_loader import DetectionDataModule
from lit_loader.datamodules import ClassBalancedSamplerConfig, WorkerSettings
from lit_loader.datasets import VocSource
from lit_loader.transforms import detection_transforms
from tests.support.toys import plain


@pytest.fixture
def epoch(shared_data, tmp_path):
    source = VocSource(root=str(shared_data / "bccd" / "BCCD"), cache_dir=str(tmp_path), progress=False)
    transforms = detection_transforms(train=True, size=96, vflip=0.5, photometric=0.8, iou_crop=0.5)

    def run(**settings):
        sampling = ClassBalancedSamplerConfig(num_samples=32)
        datamodule = DetectionDataModule(
            source, batch_size=4, train_sampler=sampling, train_transforms=transforms, seed=4, **settings
        )
        with datamodule.train_dataloader() as loader:
            return [plain(batch) for batch in loader]

    return run


@pytest.mark.parametrize(
    ("method", "num_workers"),
    [
        pytest.param("fork", 1, marks=pytest.mark.soak),
        pytest.param("fork", 4, marks=pytest.mark.soak),
        pytest.param("spawn", 2, marks=pytest.mark.soak),
        ("forkserver", 2),
    ],
)
def test_workers_and_start_methods_do_not_change_the_batches(epoch, method, num_workers):
    assert epoch(num_workers=num_workers, workers=WorkerSettings(multiprocessing_context=method)) == epoch()
