"""The command that trains on a set, as the shipped configs take it: printed after reading or writing a set."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from lit_loader.annotations import AnnotationTable
from lit_loader.foundation.escaping import quote_for_hydra

__all__ = ["hydra_value", "splits_by_stage", "splits_left_out", "training_command"]

_CONFIGS: Final = Path(__file__).parents[2] / "conf"
_HYDRA_WORDS: Final = ("null", "true", "false", "nan", "inf")


def splits_by_stage(names: Iterable[str]) -> dict[str, str | None]:
    """Return the split of each stage of a run: ``train``, ``val``, ``test``, or None for a stage without one.

    Without ``train``, the run trains on the first split that is not called ``val`` or ``test``, else on the first one.
    Without ``test``, it tests on ``val``. It never validates or tests on its training split.

    Args:
        names: The names of the splits, in their order; one or more.
    """
    splits = list(names)
    unusual_splits = [split for split in splits if split not in ("val", "test")]
    train = "train" if "train" in splits else (unusual_splits or splits)[0]
    val, test = (split if split in splits and split != train else None for split in ("val", "test"))
    return {"train": train, "val": val, "test": test or val}


def splits_left_out(names: Mapping[str, str]) -> list[str]:
    """Return a line on the splits that `training_command` does not use, or nothing.

    Args:
        names: For each split the name of its file, folder or list.
    """
    stages = splits_by_stage(names)
    unused = [split for split in names if split not in stages.values()]
    if not unused:
        return []
    return [
        f"the command below trains on {stages['train']} and does not read {', '.join(unused)}; "
        f"to validate or test on one of them, give val=NAME or test=NAME, such as val={names[unused[0]]}"
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
        format: The format's name.
        root: The data set's folder.
        names: For each split the name of its file, folder or list; `splits_by_stage` chooses the stages.
        table: The set to train on, whose objects decide the task: with points landmarks, with boxes detection, with
            boxes that are all the whole image classification.
        options: For each split the options of its reader.
        shared: Other keys of the data set's config, such as ``class_names``, left out if None or empty.
    """
    splits = splits_by_stage(names)
    wanted = {"root": root, **{key: value for key, value in shared.items() if value}}
    wanted |= {stage: None if split is None else names[split] for stage, split in splits.items()}
    given = {stage: options.get(split, {}) for stage, split in splits.items() if split is not None}
    common = {k: v for k, v in given["train"].items() if all(each.get(k) == v for each in given.values())}
    own = {stage: {k: v for k, v in each.items() if k not in common} for stage, each in given.items()}
    nested = _flat({"format": format, **wanted, "options": common, "stage_options": own})
    for name in (format, *sorted(path.stem for path in (_CONFIGS / "dataset").glob("*.yaml")), "files"):
        config = _read_config(name)
        # a config without a format is that of one, whose options are keys themselves
        values = nested if "format" in config else _flat({**wanted, **common, "stage_options": own})
        if config.get("format", name) == format or name == "files":
            has_keys = {key.partition(".")[0] for key in values} <= config.keys() | {"format"}
            if has_keys and all(_is_given(key, value, values) for key, value in _flat(config).items()):
                break
    words = [
        f"{'' if key in _flat(config) else '++'}dataset.{key}={hydra_value(value)}"
        for key, value in values.items()
        if key not in _flat(config) or _flat(config)[key] != value
    ]
    return shlex.join(["lit-loader", "train", *_task(table), f"dataset={name}", *words])


def _read_config(name: str) -> dict[str, Any]:
    """Return a shipped config of a data set, with the keys of the one that it is based on; empty if there is none."""
    path = _CONFIGS / "dataset" / f"{name}.yaml"
    config: dict[str, Any] = yaml.safe_load(path.read_text()) if path.is_file() else {}
    return _read_config("files") | config if "defaults" in config else config


def _is_given(key: str, value: Any, given: Mapping[str, Any]) -> bool:
    """Return whether an option of a config is among those given, itself or as the key that it looks up first."""
    looked_up = re.match(r"\$\{oc\.select:dataset\.([\w.]+),", str(value))
    return "options." not in key or key in given or (looked_up is not None and looked_up[1] in given)


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return flat


def _task(table: AnnotationTable) -> list[str]:
    """Return the overrides that choose what is trained: every sample once an epoch, whatever an experiment balances."""
    sizes = np.stack([table.widths, table.heights], axis=1)[table.image_of_object()]
    if table.keypoint_schema is not None:
        name = "unified" if table.attributes else "landmarks"
    elif table.num_objects and np.array_equal(
        table.boxes, np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    ):
        name = "classification"
    else:
        return []
    choices = yaml.safe_load((_CONFIGS / "experiment" / f"{name}.yaml").read_text()).get("defaults", [])
    sampler = next((each["override /sampler"] for each in choices if "override /sampler" in each), "random")
    return [f"experiment={name}", *(["sampler=random"] if sampler != "random" else [])]


def hydra_value(value: Any) -> str:
    """Return a value as Hydra's overrides take it; text is quoted unless it is a plain word or path."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[./]*[A-Za-z_][\w./-]*", value, re.ASCII) and value.lower() not in _HYDRA_WORDS:
        return value
    return quote_for_hydra(value)
