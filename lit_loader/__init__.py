"""Data loading for detection, landmark and classification training: balanced, seeded, exact.

Names are imported when first asked for, so that ``import lit_loader`` starts nothing and costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import get_worker_info

    from lit_loader.annotations import AnnotationTable
    from lit_loader.collate import default_collate, default_convert, detection_collate
    from lit_loader.datamodules import (
        ClassificationDataModule,
        DatasetsDataModule,
        DetectionDataModule,
        LandmarkDataModule,
        MultiTaskDataModule,
    )
    from lit_loader.datasets import DetectionDataset
    from lit_loader.engine import BadSample, append_bad_samples
    from lit_loader.forkserver import start_forkserver
    from lit_loader.formats import read_annotations, write_annotations
    from lit_loader.loader import DataLoader
    from lit_loader.samplers import (
        ClassAwareSampler,
        ClassBalancedSampler,
        MixedSourceSampler,
        RandomSampler,
        RepeatFactorSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
    from lit_loader.seeding import is_duplicate, sample_rng

_HOMES = {
    "AnnotationTable": "lit_loader.annotations",
    "BadSample": "lit_loader.engine",
    "ClassAwareSampler": "lit_loader.samplers",
    "ClassBalancedSampler": "lit_loader.samplers",
    "ClassificationDataModule": "lit_loader.datamodules",
    "DataLoader": "lit_loader.loader",
    "DatasetsDataModule": "lit_loader.datamodules",
    "DetectionDataModule": "lit_loader.datamodules",
    "DetectionDataset": "lit_loader.datasets",
    "LandmarkDataModule": "lit_loader.datamodules",
    "MixedSourceSampler": "lit_loader.samplers",
    "MultiTaskDataModule": "lit_loader.datamodules",
    "RandomSampler": "lit_loader.samplers",
    "RepeatFactorSampler": "lit_loader.samplers",
    "SequentialSampler": "lit_loader.samplers",
    "SubsetRandomSampler": "lit_loader.samplers",
    "WeightedRandomSampler": "lit_loader.samplers",
    "append_bad_samples": "lit_loader.engine",
    "default_collate": "lit_loader.collate",
    "default_convert": "lit_loader.collate",
    "detection_collate": "lit_loader.collate",
    "get_worker_info": "torch.utils.data",
    "is_duplicate": "lit_loader.seeding",
    "read_annotations": "lit_loader.formats",
    "sample_rng": "lit_loader.seeding",
    "start_forkserver": "lit_loader.forkserver",
    "write_annotations": "lit_loader.formats",
}

__all__ = [
    "AnnotationTable",
    "BadSample",
    "ClassAwareSampler",
    "ClassBalancedSampler",
    "ClassificationDataModule",
    "DataLoader",
    "DatasetsDataModule",
    "DetectionDataModule",
    "DetectionDataset",
    "LandmarkDataModule",
    "MixedSourceSampler",
    "MultiTaskDataModule",
    "RandomSampler",
    "RepeatFactorSampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "append_bad_samples",
    "default_collate",
    "default_convert",
    "detection_collate",
    "get_worker_info",
    "is_duplicate",
    "read_annotations",
    "sample_rng",
    "start_forkserver",
    "write_annotations",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
