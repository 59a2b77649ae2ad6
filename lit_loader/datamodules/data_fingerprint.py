"""Record of the data in a checkpoint, and its comparison with the data of a later run.

NOTE [A record is untrusted]
    Anyone may have written a checkpoint. `_parsed` checks the type and the length of every value before the comparison
    uses it, and every text is escaped before a message contains it. A record that fails a check is reported as damaged.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import PIL
import torch
import torchvision
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lit_loader import __version__
from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.fingerprint import KIND_BY_COLUMN, table_fingerprint, text_digest
from lit_loader.annotations.key_sketch import SKETCH_BYTES, KeySketch
from lit_loader.errors import DataChangedError
from lit_loader.foundation.escaping import printable

__all__ = ["DamagedRecordError", "DataChanges", "check_data", "data_changes", "data_record", "describe", "set_record"]

_VERSION: Final = 1
_MAX_SETS: Final = 64
_MAX_CLASSES: Final = 200
_MAX_COUNTS: Final = 450  # of all sets together
_MAX_NAME: Final = 60  # characters of a name
_MAX_NAMES_BYTES: Final = 2000  # of all class names together
_MAX_TEXT: Final = 240  # characters of the description of a transform or sampler
_MAX_INT: Final = 2**62
_NUM_CHANGES: Final = 3  # classes whose counts a message contains
_EXCERPT: Final = 40  # characters of a description that a message contains
_DIGEST: Final = re.compile("[0-9a-f]{16}")
_KINDS: Final = tuple(dict.fromkeys([*KIND_BY_COLUMN.values(), "attributes"]))
_TEXTS: Final = ("transforms", "batch_transforms", "sampler")


class DamagedRecordError(ValueError):
    """The record in a checkpoint has a value that this version of lit_loader does not write."""


@dataclass(frozen=True, kw_only=True)
class DataChanges:
    """Differences between the data of a checkpoint and the data of a run.

    Attributes:
        lines: One line for each set, and for the names of all sets, that differ.
        versions: Libraries whose versions differ, as ``name old -> new``.
        missing: Names of sets of the run whose stage is not in the record.
    """

    lines: list[str]
    versions: list[str]
    missing: list[str]


@dataclass(frozen=True, kw_only=True)
class _SetRecord:
    num_images: int
    num_objects: int
    digests: Mapping[str, str]
    sketch: KeySketch
    counts: Sequence[int]
    mix: Sequence[int] | None
    texts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Record:
    class_names: Sequence[str]
    names: Mapping[str, str]
    versions: Mapping[str, str]
    sets: Mapping[str, _SetRecord]


# -- writing ----------------------------------------------------------------------------------------------------------


def set_record(
    table: AnnotationTable, labels: npt.NDArray[np.int64], *, mix: npt.NDArray[np.float64] | None, **parts: object
) -> dict[str, Any]:
    """Return the record of one set as plain values; `data_record` limits its length.

    Args:
        table: The samples.
        labels: int64 ``(n,)``, the label of each object or sample, -1 without one.
        mix: float64 ``(num_classes,)``, the expected share of each class in an epoch, or None if it is unknown.
        **parts: ``transforms``, ``batch_transforms`` and ``sampler`` of the set, described by `describe`.
    """
    fingerprint = table_fingerprint(table)
    return {
        "images": fingerprint.num_images,
        "objects": fingerprint.num_objects,
        "digests": {**fingerprint.digests, "unlabelled": text_digest(sorted(table.unlabelled_classes))},
        "sketch": base64.b85encode(fingerprint.sketch.to_bytes()).decode(),
        "counts": np.bincount(labels[labels >= 0]).tolist(),
        # In units of 0.1 %, so that rounding errors of a machine do not count.
        "mix": None if mix is None else np.rint(1000 * mix).astype(int).tolist(),
        "texts": {name: describe(part) for name, part in parts.items() if part is not None},
    }


def data_record(
    sets: Mapping[str, Mapping[str, Any]], class_names: Sequence[str], keypoint_schema: object
) -> dict[str, Any]:
    """Return the record of all open sets as plain values: a few kilobytes, whatever the size of the data.

    Args:
        sets: Results of `set_record` by the name of the set.
        class_names: Names of the labels, the same for all sets.
        keypoint_schema: Names and pairs of the points, or None.
    """
    num_names = min(len(class_names), _MAX_CLASSES)
    names = [_shortened(name, _MAX_NAME) for name in class_names[:num_names]]
    # Few long names, or many short ones.
    while names and sum(len(name) + 4 for name in names) > _MAX_NAMES_BYTES:
        names.pop()
    first_sets = list(sets.items())[:_MAX_SETS]
    num_counts = min(len(names), _MAX_COUNTS // max(1, len(first_sets)))
    limited: dict[str, Any] = {}
    for name, record in first_sets:
        mix = None if record["mix"] is None else record["mix"][:num_counts]
        padded = [*record["counts"], *[0] * num_counts]
        limited[_shortened(name, _MAX_NAME)] = {**record, "counts": padded[:num_counts], "mix": mix}
    return {
        "version": _VERSION,
        "class_names": names,
        "names": {"class_names": text_digest(tuple(class_names)), "keypoints": text_digest(keypoint_schema)},
        "versions": _versions(),
        "sets": limited,
    }


def describe(part: object) -> str:
    """Return the ``repr`` of a transform or sampler as one short line, the same in every process."""
    try:
        text = _dataclass_text(part) if is_dataclass(part) and not isinstance(part, type) else repr(part)
    except Exception:  # a user's __repr__ must not prevent a checkpoint
        text = type(part).__qualname__
    # A default repr holds an address.
    text = " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", text).split())
    return _shortened(text, _MAX_TEXT)


def _dataclass_text(part: Any) -> str:
    """Return the ``repr`` of a dataclass without defaults, so that fields of a later version change nothing."""
    values = {item.name: getattr(part, item.name) for item in fields(part) if getattr(part, item.name) != item.default}
    return f"{type(part).__qualname__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _shortened(text: str, length: int) -> str:
    """Return a text as one printable line; the end of a long one is replaced by its digest."""
    line = _line(text)
    return line if len(line) <= length else f"{line[: length - 20]}... {text_digest(line)}"


def _line(text: str) -> str:
    """Return a text as one line without characters that a terminal would obey."""
    return printable(text).replace("\n", "\\n")


def _versions() -> dict[str, str]:
    versions = {
        "lit_loader": __version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
    }
    # torch's version is a subclass of str, which a checkpoint of plain values cannot hold.
    return {name: _shortened(str(version), _MAX_NAME) for name, version in versions.items()}


# -- comparing --------------------------------------------------------------------------------------------------------


def check_data(stored: object, record: Mapping[str, Any] | None, sets: Sequence[str], *, strict: bool) -> None:
    """Warn of differences between the data of a checkpoint and of this run, on rank 0, one line for each set.

    A checkpoint without a record is accepted, with a warning if ``strict`` is true. Versions of libraries are logged.

    Args:
        stored: Untrusted record in the checkpoint, or None without one.
        record: Result of `data_record`.
        sets: Names of the sets to compare.
        strict: True to raise an error instead of the warnings.

    Raises:
        DataChangedError: If the data differs, and ``strict`` is true.
    """
    if stored is None or record is None:
        if strict:
            rank_zero_warn("strict_data=True: the checkpoint has no record of its data, so the data is not compared")
        return
    try:
        changes = data_changes(stored, record, sets)
    except DamagedRecordError:
        rank_zero_warn(
            "the checkpoint's record of its data is damaged, or of another version of lit_loader; the data is not "
            "compared"
        )
        return
    if changes.versions:
        rank_zero_info(f"versions changed since the checkpoint: {', '.join(changes.versions)}")
    if changes.lines and strict:
        raise DataChangedError(
            f"data changed since the checkpoint: {'; '.join(changes.lines)}",
            remedy="restore the data and settings of the checkpoint",
            settings={"strict_data": False},
        )
    for line in changes.lines:
        rank_zero_warn(f"data changed since the checkpoint: {line}")
    if changes.missing and strict:
        rank_zero_warn(
            f"strict_data=True: the checkpoint has no record of {', '.join(changes.missing)}, so this is not compared"
        )


def data_changes(stored: object, record: Mapping[str, Any], sets: Iterable[str]) -> DataChanges:
    """Compare the record in a checkpoint with the record of this run.

    Args:
        stored: Untrusted value; see NOTE [A record is untrusted].
        record: Result of `data_record`.
        sets: Names of the sets to compare.

    Raises:
        DamagedRecordError: If ``stored`` is not a record.
    """
    old = _parsed(stored)
    new = _parsed(record)
    compared = [_shortened(name, _MAX_NAME) for name in sets]
    stages = set(map(_stage, old.sets))
    missing = [name for name in compared if _stage(name) not in stages]
    lines = [f"{name}: {', '.join(changes)}" for name, changes in _changes(old, new, compared) if changes]
    versions = [
        f"{name} {_excerpt(old.versions[name])} -> {version}"
        for name, version in new.versions.items()
        if old.versions.get(name, version) != version
    ]
    return DataChanges(lines=lines, versions=versions, missing=missing)


def _stage(name: str) -> str:
    """Return the stage of a set, such as ``val`` of ``val/1``."""
    return name.partition("/")[0]


def _changes(old: _Record, new: _Record, sets: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each part of the data, and the differences in it."""
    shared_sets = [name for name in sets if name in old.sets and name in new.sets]
    if shared_sets:
        yield "names", list(_name_changes(old, new))
    yield "sets", list(_membership_changes(old, sets))
    for name in shared_sets:
        yield name, list(_set_changes(old, new, old.sets[name], new.sets[name]))


def _membership_changes(old: _Record, sets: Sequence[str]) -> Iterator[str]:
    """Yield the sets that only one side has, among the stages that both have."""
    old_stages = set(map(_stage, old.sets))
    stages = set(map(_stage, sets))
    added = [name for name in sets if name not in old.sets and _stage(name) in old_stages]
    removed = [name for name in old.sets if name not in sets and _stage(name) in stages]
    if added:
        yield f"{_listed(added)} new"
    if removed:
        yield f"{_listed(removed)} gone"


def _name_changes(old: _Record, new: _Record) -> Iterator[str]:
    if old.names["class_names"] != new.names["class_names"]:
        added = [name for name in new.class_names if name not in set(old.class_names)]
        removed = [name for name in old.class_names if name not in set(new.class_names)]
        changes = [*([f"new: {_listed(added)}"] if added else []), *([f"gone: {_listed(removed)}"] if removed else [])]
        same_names = sorted(old.class_names) == sorted(new.class_names) and old.class_names != new.class_names
        if changes:
            yield f"the classes differ ({'; '.join(changes)})"
        else:
            yield "the classes are in another order" if same_names else "the classes differ"
    if old.names["keypoints"] != new.names["keypoints"]:
        yield "the names or mirror pairs of the keypoints differ"


def _set_changes(old_record: _Record, new_record: _Record, old: _SetRecord, new: _SetRecord) -> Iterator[str]:
    differing = {name for name in {*old.digests, *new.digests} if old.digests.get(name) != new.digests.get(name)}
    counts = _count_changes(_by_name(old_record, old.counts), _by_name(new_record, new.counts), old, new)
    if "images" in differing:
        yield from _image_changes(old, new)
        if counts:
            yield f"labels differ ({counts})"
    else:
        if "order" in differing:
            yield "images are in another order"
            # A digest of masks depends on the order of the images.
            differing.discard("masks")
        kinds = [kind for kind in _KINDS if kind in differing]
        if counts and "labels" not in kinds:
            kinds.append("labels")
        if kinds:
            yield f"{_joined(kinds)} differ" + (f" ({counts})" if counts else "")
        elif "content" in differing:
            yield "annotations of objects differ"
    if "unlabelled" in differing:
        yield "unlabelled_classes differ"
    for name in _TEXTS:
        if old.texts.get(name) != new.texts.get(name):
            yield f"{name} differ ({_excerpts(old.texts.get(name), new.texts.get(name))})"
    if old.mix is not None and new.mix is not None:
        shares = _count_changes(_by_name(old_record, old.mix), _by_name(new_record, new.mix), unit=0.1)
        if shares:
            yield f"the expected class mix differs ({shares})"


def _image_changes(old: _SetRecord, new: _SetRecord) -> Iterator[str]:
    difference = new.sketch.difference(old.sketch)
    if difference is None:
        total = new.sketch.estimated_difference(old.sketch)
        growth = new.num_images - old.num_images
        num_added = _rounded(min(max((total + growth) / 2, growth, 0), new.num_images))
        num_removed = _rounded(min(max((total - growth) / 2, -growth, 0), old.num_images))
        about = "about "
    else:
        # An image with another path and equal annotations was probably renamed or moved. The values are unknown if
        # other images have changed.
        renamed = Counter() if difference.values_changed else Counter(difference.added) & Counter(difference.removed)
        num_added = len(difference.added) - renamed.total()
        num_removed = len(difference.removed) - renamed.total()
        about = ""
        if renamed:
            yield f"{_share(renamed.total(), new.num_images, 'has', 'have')} another name"
    if num_added:
        yield f"{about}{_share(num_added, new.num_images)} new"
    if num_removed:
        yield f"{about}{_share(num_removed, old.num_images)} gone"
    if difference is not None and difference.values_changed:
        yield "annotations of other images differ"


def _by_name(record: _Record, counts: Sequence[int]) -> dict[str, int]:
    return dict(zip(record.class_names, counts, strict=False))


def _count_changes(
    old: Mapping[str, int],
    new: Mapping[str, int],
    old_set: _SetRecord | None = None,
    new_set: _SetRecord | None = None,
    *,
    unit: float | None = None,
) -> str:
    """Return the largest changes of counts, such as ``car 310 -> 298``; empty without any.

    Args:
        old: Counts in the checkpoint by class.
        new: Counts in this run by class.
        old_set: Set in the checkpoint, for the classes that its record leaves out.
        new_set: The same of this run.
        unit: Percents of one count, or None for plain counts.
    """
    pairs = {name: (old.get(name, 0), new.get(name, 0)) for name in {**old, **new}}
    changes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    # By name where changes are equal, so that every rank gives the same text.
    order = sorted(changes, key=lambda name: (-abs(changes[name][1] - changes[name][0]), name))
    texts = []
    for name in order[:_NUM_CHANGES]:
        counts = [f"{count:,}" if unit is None else f"{count * unit:.1f} %" for count in changes[name]]
        texts.append(f"{_excerpt(name)} {' -> '.join(counts)}")
    if not texts and old_set is not None and new_set is not None and old_set.num_objects != new_set.num_objects:
        texts.append(f"objects {old_set.num_objects:,} -> {new_set.num_objects:,}")
    return ", ".join([*texts, *(["..."] if len(changes) > _NUM_CHANGES else [])])


def _excerpts(old: str | None, new: str | None) -> str:
    """Return the first difference of two descriptions, such as ``size=[48] -> size=[64]``."""
    old = old or "none"
    new = new or "none"
    pairs = enumerate(zip(old, new, strict=False))
    first = next((place for place, (a, b) in pairs if a != b), min(len(old), len(new)))
    # Show the differing word from its start.
    start = max(old.rfind(" ", 0, first), old.rfind("(", 0, first)) + 1
    return f"{_excerpt(old[start:]) or 'none'} -> {_excerpt(new[start:]) or 'none'}"


def _excerpt(text: str) -> str:
    line = _line(text)
    return line if len(line) <= _EXCERPT else f"{line[:_EXCERPT]}..."


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*map(_excerpt, names[:_NUM_CHANGES]), *(["..."] if len(names) > _NUM_CHANGES else [])])


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _share(count: int, total: int, singular: str = "is", plural: str = "are") -> str:
    return f"{count:,} of {total:,} images {singular if count == 1 else plural}"


def _rounded(count: float) -> int:
    """Return an estimate with two digits."""
    return int(float(f"{count:.2g}"))


# -- parsing ----------------------------------------------------------------------------------------------------------


def _parsed(value: object) -> _Record:
    """Return an untrusted value as a record.

    Raises:
        DamagedRecordError: If the value is not a record.
    """
    record = _mapping(value, 16)
    if record.get("version") != _VERSION:
        raise DamagedRecordError(f"version {_excerpt(repr(record.get('version'))[:100])} is not {_VERSION}")
    names = {name: _digest(text) for name, text in _mapping(record.get("names"), 2).items()}
    if names.keys() != {"class_names", "keypoints"}:
        raise DamagedRecordError("names")
    versions = {name: _text(text, _MAX_NAME) for name, text in _mapping(record.get("versions"), 16).items()}
    class_names = [_text(name, _MAX_NAME) for name in _list(record.get("class_names"), _MAX_CLASSES)]
    sets = _mapping(record.get("sets"), _MAX_SETS)
    return _Record(
        class_names=class_names,
        names=names,
        versions=versions,
        sets={name: _parsed_set(values, len(class_names)) for name, values in sets.items()},
    )


def _parsed_set(value: object, num_classes: int) -> _SetRecord:
    values = _mapping(value, 16)
    sketch = _text(values.get("sketch"), 2 * SKETCH_BYTES)
    with contextlib.suppress(ValueError, binascii.Error):
        return _SetRecord(
            num_images=_integer(values.get("images")),
            num_objects=_integer(values.get("objects")),
            digests={name: _digest(text) for name, text in _mapping(values.get("digests"), 32).items()},
            sketch=KeySketch.from_bytes(base64.b85decode(sketch)),
            counts=[_integer(count) for count in _list(values.get("counts"), num_classes)],
            mix=None
            if values.get("mix") is None
            else [_integer(share) for share in _list(values.get("mix"), num_classes)],
            texts={name: _text(text, _MAX_TEXT) for name, text in _mapping(values.get("texts"), 8).items()},
        )
    raise DamagedRecordError("a set")


def _mapping(value: object, length: int) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > length:
        raise DamagedRecordError("expected a mapping")
    for key in value:
        _text(key, _MAX_NAME)
    return value


def _list(value: object, length: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > length:
        raise DamagedRecordError("expected a list")
    return value


def _text(value: object, length: int) -> str:
    # A subclass could define what its methods do.
    if type(value) is not str or len(value) > length:
        raise DamagedRecordError("expected a text")
    return value


def _digest(value: object) -> str:
    text = _text(value, 16)
    if _DIGEST.fullmatch(text) is None:
        raise DamagedRecordError("expected a digest")
    return text


def _integer(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MAX_INT:
        raise DamagedRecordError("expected a count")
    return value
