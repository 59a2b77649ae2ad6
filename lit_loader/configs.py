"""Typed schemas of the config groups in ``conf/``, checks against them, and errors that name the remedy.

The shipped YAML files refer to no schema, so that any Hydra app can compose them by
``hydra.searchpath: [pkg://lit_loader.conf]`` without importing this package. An app calls `validate` on
what it composed, and runs its main function through `run_with_hints`. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Optional, Union

from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

__all__ = [
    "ClassBalancedSamplingConfig",
    "ConfigError",
    "DetectionDataModuleConfig",
    "DetectionModuleConfig",
    "GROUPS",
    "RandomSamplingConfig",
    "SequentialSamplingConfig",
    "ShapesSourceConfig",
    "TrainerConfig",
    "VocSourceConfig",
    "WeightedSamplingConfig",
    "WorkersConfig",
    "run_with_hints",
    "validate",
]

# OmegaConf reads annotations at run time and knows Optional[int], not int | None written as a string;
# Any stands where a value may be of several kinds.


class ConfigError(ValueError):
    """A composed config does not fit the schemas; the message lists every misfit with its remedy."""


@dataclass
class ShapesSourceConfig:
    """Keys of ``lit_loader.datasets.ShapesSource``."""

    num_images: dict[str, int] = field(default_factory=dict)
    image_size: int = 96
    objects_per_image: list[int] = field(default_factory=list)
    class_shares: list[float] = field(default_factory=list)
    seed: int = 0
    cache_dir: Optional[str] = None
    progress: bool = True


@dataclass
class VocSourceConfig:
    """Keys of ``lit_loader.datasets.VocSource``."""

    root: str = MISSING
    train: Optional[str] = "train"
    val: Any = "val"
    test: Any = "test"
    predict: Any = None
    class_names: Optional[list[str]] = None
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"
    policy: dict[str, Any] = field(default_factory=dict)
    cache_dir: Optional[str] = None
    num_workers: Optional[int] = None
    progress: bool = True


@dataclass
class RandomSamplingConfig:
    """``lit_loader.datamodules.RandomSampling`` has no keys."""


@dataclass
class SequentialSamplingConfig:
    """``lit_loader.datamodules.SequentialSampling`` has no keys."""


@dataclass
class WeightedSamplingConfig:
    """Keys of ``lit_loader.datamodules.WeightedSampling``."""

    exponent: float = 1.0
    reduce: str = "mean"
    num_samples: Optional[int] = None
    replacement: bool = True


@dataclass
class ClassBalancedSamplingConfig:
    """Keys of ``lit_loader.datamodules.ClassBalancedSampling``."""

    temperature: float = 1.0
    num_samples: Optional[int] = None
    empty_share: Optional[float] = None


@dataclass
class WorkersConfig:
    """Keys of the ``workers`` group: worker settings of ``lit_loader.datamodules.LoaderDataModule``."""

    num_workers: int = 0
    prefetch_factor: Optional[int] = None
    persistent_workers: Optional[bool] = None
    multiprocessing_context: Optional[str] = None
    pin_memory: Optional[bool] = None
    timeout: float = 0.0


@dataclass
class DetectionDataModuleConfig(WorkersConfig):
    """Keys of ``lit_loader.datamodules.DetectionDataModule``."""

    source: Any = MISSING
    batch_size: int = 8
    train_batch_size: Optional[int] = None
    val_batch_size: Optional[int] = None
    test_batch_size: Optional[int] = None
    predict_batch_size: Optional[int] = None
    train_sampler: Any = None
    val_sampler: Any = None
    test_sampler: Any = None
    predict_sampler: Any = None
    train_transforms: Any = None
    val_transforms: Any = None
    test_transforms: Any = None
    predict_transforms: Any = None
    images: str = "list"
    size_divisor: int = 1
    collate_fn: Any = None
    batch_transforms: Any = None
    first_label: int = 1
    extra_fields: list[str] = field(default_factory=list)
    drop_last: bool = False
    seed: Optional[int] = None


@dataclass
class DetectionModuleConfig:
    """Keys of ``lit_loader.recipes.DetectionModule``."""

    class_names: Any = None
    channels: int = 48
    head_channels: int = 64
    head_convs: int = 1
    strides: list[int] = field(default_factory=list)
    min_size: int = 96
    max_size: int = 192
    learning_rate: float = 1e-2
    weight_decay: float = 1e-2
    warmup_steps: int = 50
    score_thresh: float = 0.05
    nms_thresh: float = 0.6
    detections_per_img: int = 100


@dataclass
class TrainerConfig:
    """The keys of Lightning's ``Trainer`` that are often set; others may be added with ``+trainer.KEY=``."""

    accelerator: str = "auto"
    devices: Any = "auto"
    strategy: str = "auto"
    num_nodes: int = 1
    precision: Any = None
    max_epochs: Optional[int] = None
    max_steps: int = -1
    limit_train_batches: Optional[Union[int, float]] = None
    limit_val_batches: Optional[Union[int, float]] = None
    limit_test_batches: Optional[Union[int, float]] = None
    val_check_interval: Optional[Union[int, float]] = None
    check_val_every_n_epoch: Optional[int] = 1
    num_sanity_val_steps: Optional[int] = None
    gradient_clip_val: Optional[float] = None
    accumulate_grad_batches: int = 1
    log_every_n_steps: Optional[int] = None
    deterministic: Any = None
    use_distributed_sampler: bool = True


GROUPS: dict[str, dict[str, type]] = {
    "dataset": {
        "lit_loader.datasets.ShapesSource": ShapesSourceConfig,
        "lit_loader.datasets.VocSource": VocSourceConfig,
    },
    "sampler": {
        "lit_loader.datamodules.RandomSampling": RandomSamplingConfig,
        "lit_loader.datamodules.SequentialSampling": SequentialSamplingConfig,
        "lit_loader.datamodules.WeightedSampling": WeightedSamplingConfig,
        "lit_loader.datamodules.ClassBalancedSampling": ClassBalancedSamplingConfig,
    },
    "workers": {"": WorkersConfig},
    "datamodule": {"lit_loader.datamodules.DetectionDataModule": DetectionDataModuleConfig},
    "model": {"lit_loader.recipes.DetectionModule": DetectionModuleConfig},
    "trainer": {"lightning.pytorch.Trainer": TrainerConfig},
}
"""Config groups, and for each ``_target_`` in one the schema of its keys (``""``: a group without target)."""

_OPEN = frozenset({TrainerConfig})  # the target itself refuses a key that it does not know


def validate(cfg: DictConfig) -> None:
    """Check a composed config, group by group, against the schemas.

    A group whose ``_target_`` is not ours is left alone.

    Raises:
        ConfigError: If a key is unknown, missing, or of the wrong type; lists all of them.
    """
    misfits: list[str] = []
    for group, schemas in GROUPS.items():
        node = cfg.get(group)
        if isinstance(node, DictConfig):
            schema = schemas.get(str(node.get("_target_", "")))
            if schema is not None:
                misfits.extend(_misfits(group, node, schema))
    if misfits:
        raise ConfigError("\n".join(misfits))


def _misfits(group: str, node: DictConfig, schema: type) -> Iterator[str]:
    known = [item.name for item in fields(schema)]
    for key in node:
        name = str(key)
        if name.startswith("_") and name.endswith("_"):
            continue
        if name not in known:
            if schema not in _OPEN:
                yield _unknown_key(group, name, known)
        elif OmegaConf.is_missing(node, name):
            yield f"{group}.{name} is missing; pass {group}.{name}=VALUE"
        elif not OmegaConf.is_interpolation(node, name):  # checked where it points to
            try:
                OmegaConf.merge(OmegaConf.structured(schema), {name: node[name]})
            except ValidationError:
                expected = str(next(item.type for item in fields(schema) if item.name == name))
                yield f"{group}.{name}={node[name]!r} should be of type {expected}"


def _unknown_key(group: str, name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"did you mean {group}.{close[0]}? " if close else ""
    return f"{group} has no key {name!r}; {meant}Its keys: {', '.join(known) or 'none'}"


def run_with_hints(main: Callable[[], Any]) -> None:
    """Run a ``@hydra.main`` function; an error in the config ends it with a message and no traceback.

    Hydra lists the options of a group that does not have the one asked for; this adds what is meant by a
    key that does not exist.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else Hydra prints and exits by itself
    try:
        main()
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        sys.stderr.write(f"{_with_hint(error)}\n")
        sys.exit(1)


def _with_hint(error: Exception) -> str:
    found = re.search(r"Could not override '(\w+)\.(\w+)'", str(error))
    if found is None or found[1] not in GROUPS:
        return f"error in the config: {error}"
    group, name = found[1], found[2]
    known = dict.fromkeys(item.name for schema in GROUPS[group].values() for item in fields(schema))
    return f"error in the config: {_unknown_key(group, name, list(known))}"
