"""The training command for a set with the shipped configs, printed after reading or writing the set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.figures import HIGH_IMBALANCE, imbalance_of
from lit_loader.foundation.escaping import hydra_value, shell_command

__all__ = ["splits_by_stage", "splits_left_out", "training_command"]

_CONFIGS: Final = Path(__file__).parents[2] / "conf"


def splits_by_stage(names: Iterable[str]) -> dict[str, str | None]:
    """Return the split of each stage of a run, ``train``, ``val`` and ``test``, or None for a stage without a split.

    Without ``train``, the run trains on the first split that is not called ``val`` or ``test``, else on the first one.
    Without ``test``, it tests on ``val``. It never validates or tests on its training split.

    Args:
        names: One or more names of splits, in their order.
    """
    splits = list(names)
    unusual_splits = [split for split in splits if split not in ("val", "test")]
    train = "train" if "train" in splits else (unusual_splits or splits)[0]
    val, test = (split if split in splits and split != train else None for split in ("val", "test"))
    return {"train": train, "val": val, "test": test or val}


def splits_left_out(names: Mapping[str, str]) -> list[str]:
    """Return a line about the splits that `training_command` does not use, or an empty list.

    Args:
        names: Name of the file, folder or list of each split.
    """
    stages = splits_by_stage(names)
    unused = [split for split in names if split not in stages.values()]
    if not unused:
        return []
    return [
        f"the command below trains on {stages['train']} and does not read {', '.join(unused)}; "
        f"to validate or test on one of them, pass val=NAME or test=NAME, such as val={names[unused[0]]}"
    ]


def training_command(
    format: str,
    root: str,
    names: Mapping[str, str],
    table: AnnotationTable,
    options: Mapping[str, Mapping[str, Any]],
    **shared: Any,
) -> str:
    """Return the command that trains on sets of a format.

    Args:
        format: Name of the format.
        root: Folder of the dataset.
        names: Name of the file, folder or list of each split; `splits_by_stage` chooses the stages.
        table: The training set. Its objects decide the task: landmarks with points, classification if every box is the
            whole image, else detection.
        options: Options of the reader for each split.
        shared: Other keys of the dataset's config, such as ``class_names``; None and empty values are left out.
    """
    splits = splits_by_stage(names)
    settings = {"root": root, **{key: value for key, value in shared.items() if value or value == 0}}
    settings |= {stage: None if split is None else names[split] for stage, split in splits.items()}
    by_stage = {stage: options.get(split, {}) for stage, split in splits.items() if split is not None}
    # Options that all stages share are written once, the others for each stage.
    common = {
        key: value
        for key, value in by_stage["train"].items()
        if all(stage_options.get(key) == value for stage_options in by_stage.values())
    }
    differing = {
        stage: {key: value for key, value in stage_options.items() if key not in common}
        for stage, stage_options in by_stage.items()
    }
    nested = _flatten({"format": format, **settings, "options": common, "stage_options": differing})
    flat = _flatten({**settings, **common, "stage_options": differing})
    # Prefer the config of the format, and fall back to `files`, which reads any format.
    for name in (format, *sorted(path.stem for path in (_CONFIGS / "dataset").glob("*.yaml")), "files"):
        config = _read_config(name)
        # A config without the key `format` is of one format, and has its options as keys of its own.
        values = nested if "format" in config else flat
        # The command cannot remove an option of the config, so it must set every one.
        if config.get("format", name) == format or name == "files":
            has_keys = {key.partition(".")[0] for key in values} <= config.keys() | {"format"}
            if has_keys and all(_is_set(key, value, values) for key, value in _flatten(config).items()):
                break
    defaults = _flatten(config)
    # `++` sets a key whether or not the config of the dataset has it.
    words = [
        f"{'' if key in defaults else '++'}dataset.{key}={hydra_value(value)}"
        for key, value in values.items()
        if key not in defaults or defaults[key] != value
    ]
    return shell_command(["lit-loader", "train", *_task(table), f"dataset={name}", *words])


def _read_config(name: str) -> dict[str, Any]:
    """Return a shipped config of a dataset, including the keys of its base; empty if the config does not exist."""
    path = _CONFIGS / "dataset" / f"{name}.yaml"
    config: dict[str, Any] = yaml.safe_load(path.read_text()) if path.is_file() else {}
    return _read_config("files") | config if "defaults" in config else config


def _is_set(key: str, value: Any, values: Mapping[str, Any]) -> bool:
    """Return True unless a key is an option that ``values`` leave to a config, directly or by an interpolation."""
    if "options." not in key or key in values:
        return True
    interpolation = re.match(r"\$\{oc\.select:dataset\.([\w.]+),", str(value))
    return interpolation is not None and interpolation[1] in values


def _flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{path}{key}.")
        else:
            flat[f"{path}{key}"] = value
    return flat


def _task(table: AnnotationTable) -> list[str]:
    """Return the overrides that choose the experiment for a set, without balancing unless classes are imbalanced."""
    # A set with points trains landmarks. Boxes that all equal their image carry no position, so only the class counts.
    sizes = np.stack([table.widths, table.heights], axis=1)[table.image_of_object()]
    if table.keypoint_schema is not None:
        name = "unified" if table.attributes else "landmarks"
    elif table.num_objects and np.array_equal(table.boxes, np.concatenate([np.zeros_like(sizes), sizes], axis=1)):
        name = "classification"
    else:
        return []
    if (imbalance_of(table) or 1) >= HIGH_IMBALANCE:
        return [f"experiment={name}"]
    # Some experiments balance classes, which this set does not need.
    choices = yaml.safe_load((_CONFIGS / "experiment" / f"{name}.yaml").read_text()).get("defaults", [])
    samplers = [choice["override /sampler"] for choice in choices if "override /sampler" in choice]
    sampler = samplers[0] if samplers else "random"
    return [f"experiment={name}", *(["sampler=random"] if sampler != "random" else [])]
