"""Record of the data in a checkpoint, and its comparison with the data of a later run."""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import PIL
import torch
import torchvision
from lightning.pytorch.utilities import rank_zero_only

from lit_loader import __version__
from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.fingerprint import KINDS, table_digests, text_digest
from lit_loader.datamodules.sampling import SamplerConfig
from lit_loader.errors import DataChangedError
from lit_loader.foundation.escaping import printable
from lit_loader.schedules import Schedule
from lit_loader.transforms import describe

__all__ = ["changed_sets", "check_data", "data_record", "is_record", "set_record"]

_VERSION: Final = 1
_MAX_ITEMS: Final = 200  # of a mapping in a record
_MAX_NAME: Final = 60  # characters of a name
_MAX_TEXT: Final = 240  # characters of any text
_MAX_COUNTS: Final = 1950  # characters of the counts of a set, enough for the 80 classes of COCO
_NUM_CHANGES: Final = 3  # classes whose counts a message contains
_EXCERPT: Final = 40  # characters of a text that a message contains
_TEXTS: Final = (
    "class names",
    "keypoint names",
    "unlabelled classes",
    "transforms",
    "mixing",
    "batch_transforms",
    "sampler",
)

# Form of a record. A mapping with the key `str` has arbitrary names.
_SCHEMA: Final[dict[Any, Any]] = {
    "version": int,
    "versions": {str: str},
    "sets": {
        str: {
            "numbers": {"images": int, "objects": int},
            "digests": {str: str},
            "texts": {str: str},
            "counts": {str: int},
            "mix": {str: int},
        }
    },
}

_logger = logging.getLogger(__name__)
# A logger instead of `rank_zero_warn`, which would print the line of code in front of the message.
_warn = rank_zero_only(_logger.warning)
_inform = rank_zero_only(_logger.info)


def set_record(
    table: AnnotationTable, *, label_attribute: str | None, mix: npt.NDArray[np.float64] | None, **parts: object
) -> dict[str, dict[str, Any]]:
    """Return the record of one set as plain values: at most a few kilobytes, whatever the size of the set.

    Args:
        table: The samples.
        label_attribute: The attribute whose values are the labels, or None for the class.
        mix: float64 ``(num_labels,)``, the expected share of each label in an epoch, or None if it is unknown.
        **parts: ``transforms``, ``mixing``, ``batch_transforms`` and ``sampler`` of the set, or None.
    """
    labels, names = table.labels_of(label_attribute)
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    texts = {
        "class names": ", ".join(names),
        "keypoint names": str(table.keypoint_schema or ""),
        "unlabelled classes": ", ".join(sorted(table.unlabelled_classes)),
        **{name: "" if part is None else _description(part) for name, part in parts.items()},
    }
    return {
        # Several rows may be tiles, or objects, of one image.
        "numbers": {"images": len(set(table.image_paths)), "objects": table.num_objects},
        "digests": table_digests(table),
        "texts": {name: _line(text) for name, text in texts.items() if text},
        "counts": _by_name(names, counts),
        # In units of 0.1 %, so that rounding errors of a machine do not count.
        "mix": {} if mix is None else _by_name(names, np.rint(1000 * mix)),
    }


def data_record(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of all open sets as plain values.

    Args:
        sets: Results of `set_record` by the name of the set, such as ``train`` or ``val/1``.
    """
    versions = {
        "lit_loader": __version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
    }
    return {
        "version": _VERSION,
        # torch's version is a subclass of str, which a checkpoint of plain values cannot hold.
        "versions": {name: _line(str(version), _MAX_NAME) for name, version in versions.items()},
        "sets": {_line(name, _MAX_NAME): record for name, record in islice(sets.items(), _MAX_ITEMS)},
    }


def _description(part: object) -> str:
    """Return a transform or the config of a sampler as text, the same in every process."""
    try:
        lines = describe(part)
        if isinstance(part, SamplerConfig):
            # A line is too short for the points of a schedule.
            lines += [f"{name}: {value}" for name, value in vars(part).items() if isinstance(value, Schedule)]
        text = "; ".join(lines)
    except Exception:  # a user's __repr__ must not prevent a checkpoint
        text = type(part).__qualname__
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _line(text: str, length: int = _MAX_TEXT) -> str:
    """Return a text as one printable line; the end of a long one is replaced by its digest."""
    line = printable(text).replace("\n", "\\n")
    return line if len(line) <= length else f"{line[: length - 20]}... {text_digest(line)}"


def _by_name(names: Sequence[str], values: npt.NDArray[Any]) -> dict[str, int]:
    """Return values by the names of the first classes, as many as a record has space for."""
    lines = [_line(name, _MAX_NAME) for name in names]
    # A count takes about 10 characters besides its name.
    limit = _MAX_COUNTS // (max(map(len, lines), default=0) + 10)
    return dict(zip(lines[:limit], values[:limit].astype(int).tolist(), strict=True))


def check_data(stored: Any, record: Mapping[str, Any], stages: Sequence[str], *, strict: bool) -> None:
    """Log differences between the data of a checkpoint and of this run, on rank 0, one line for each set.

    A checkpoint without a record is accepted, with a warning if ``strict`` is true. Versions of libraries are logged.

    Args:
        stored: Untrusted record in the checkpoint, or None without one.
        record: Result of `data_record`.
        stages: Stages to compare.
        strict: True to raise an error instead of the warnings.

    Raises:
        DataChangedError: If the data differs, and ``strict`` is true.
    """
    if stored is not None and not is_record(stored):
        _warn("the checkpoint's record of its data is damaged, or of another version; the data is not compared")
        return
    old = stored or {"versions": {}, "sets": {}}
    recorded_stages = set(map(_stage, old["sets"]))
    open_stages = [stage for stage in stages if stage in map(_stage, record["sets"])]
    missing = [stage for stage in open_stages if stage not in recorded_stages]
    if missing and strict:
        _warn("strict_data=True: the checkpoint has no record of %s, so this is not compared", ", ".join(missing))
    for name, version in old["versions"].items():
        if record["versions"].get(name, version) != version:
            _inform("version changed since the checkpoint: %s %s -> %s", name, version, record["versions"][name])
    lines = changed_sets(old["sets"], record["sets"], [stage for stage in open_stages if stage in recorded_stages])
    if lines and strict:
        raise DataChangedError(
            f"data changed since the checkpoint: {'; '.join(lines)}",
            remedy="restore the data and settings of the checkpoint",
            settings={"strict_data": False},
        )
    for line in lines:
        _warn("data changed since the checkpoint: %s", line)


def changed_sets(old: Mapping[str, Any], new: Mapping[str, Any], stages: Sequence[str]) -> list[str]:
    """Return one line for each set of some stages that differs between a checkpoint and this run."""
    lines = []
    for name in {**new, **old}:
        if name in old and name in new:
            changes = ", ".join(_changes(old[name], new[name]))
        else:
            changes = "set is new" if name in new else "set is gone"
        if changes and _stage(name) in stages:
            lines.append(f"{name}: {changes}")
    return lines


def _stage(name: str) -> str:
    """Return the stage of a set, such as ``val`` of ``val/1``."""
    return name.partition("/")[0]


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of one set."""
    kinds = [kind for kind in KINDS if old["digests"].get(kind) != new["digests"].get(kind)]
    counts = _largest_changes(old["counts"], new["counts"], "{:,}".format)
    for unit in ("images", "objects"):
        if old["numbers"][unit] != new["numbers"][unit]:
            yield f"{new['numbers'][unit]:,} {unit} instead of {old['numbers'][unit]:,}"
            # Every column differs in its length, so only the counts are informative.
            kinds = ["labels"] if counts else []
            break
    if "image paths" in kinds:
        kinds.remove("image paths")
        yield "other image paths"
    if kinds:
        yield f"{' and '.join(kinds)} differ" + (f" ({counts})" if counts else "")
    for name in _TEXTS:
        old_text = old["texts"].get(name, "none")
        new_text = new["texts"].get(name, "none")
        if old_text != new_text:
            difference = _mix_difference if name == "mixing" else _first_difference
            yield f"other {name} ({difference(old_text, new_text)})"
    shares = _largest_changes(old["mix"], new["mix"], lambda share: f"{share / 10:.1f} %")
    if shares:
        yield f"other expected class mix ({shares})"


def _largest_changes(old: Mapping[str, int], new: Mapping[str, int], write: Any) -> str:
    """Return the largest changes of the classes that both have, such as ``car 310 -> 298``; empty without any."""
    names = [name for name in new if name in old and old[name] != new[name]]
    names.sort(key=lambda name: -abs(new[name] - old[name]))
    texts = [f"{_excerpt(name)} {write(old[name])} -> {write(new[name])}" for name in names[:_NUM_CHANGES]]
    return ", ".join([*texts, *(["..."] if len(names) > _NUM_CHANGES else [])])


def _mix_difference(old: str, new: str) -> str:
    """Return the differences of two lists of mixes, such as ``Mosaic: p=0.5 -> p=1``."""
    old_mixes = _mixes_in(old)
    new_mixes = _mixes_in(new)
    names = [", ".join(name for name, _ in mixes) for mixes in (old_mixes, new_mixes)]
    if names[0] != names[1]:
        return " -> ".join(map(_excerpt, names))
    differences = []
    for (name, old_arguments), (_, new_arguments) in zip(old_mixes, new_mixes, strict=True):
        # An argument with its default is left out of the text.
        removed = [argument for argument in old_arguments if argument not in new_arguments]
        added = [argument for argument in new_arguments if argument not in old_arguments]
        if removed or added:
            differences.append(f"{name}: {', '.join(removed) or 'default'} -> {', '.join(added) or 'default'}")
    return "; ".join(differences) or "another order of arguments"


def _mixes_in(text: str) -> list[tuple[str, list[str]]]:
    """Return the class name and the arguments of each mix in the text of a record."""
    # A mix begins with a name and a bracket, an argument with a name and an equals sign.
    parts = [part.partition("(") for part in re.split(r"; (?=\w+\()", text)]
    return [(name, arguments.removesuffix(")").split("; ")) for name, _, arguments in parts]


def _first_difference(old: str, new: str) -> str:
    """Return the first difference of two texts, such as ``size=[48] -> size=[64]``."""
    pairs = enumerate(zip(old, new, strict=False))
    first = next((place for place, (a, b) in pairs if a != b), min(len(old), len(new)))
    # Show the differing word from its start.
    start = max(old.rfind(" ", 0, first), old.rfind("(", 0, first)) + 1
    return f"{_excerpt(old[start:]) or 'none'} -> {_excerpt(new[start:]) or 'none'}"


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def is_record(value: Any) -> bool:
    """Return True if an untrusted value has the form of `data_record`.

    Anyone may have written a checkpoint, so everything is checked before the comparison or a message uses it.
    """
    return _matches(value, _SCHEMA) and value["version"] == _VERSION


def _matches(value: Any, schema: Any) -> bool:
    # Exact types, because a subclass could define what its methods do, and bool is a subclass of int.
    if schema is int:
        return type(value) is int and 0 <= value < 2**62
    if schema is str:
        return type(value) is str and len(value) <= _MAX_TEXT and value.isprintable()
    if type(value) is not dict or len(value) > _MAX_ITEMS:
        return False
    if str in schema:
        return all(_matches(key, str) and _matches(item, schema[str]) for key, item in value.items())
    return value.keys() == schema.keys() and all(_matches(value[key], schema[key]) for key in schema)
