"""Parse the arguments of a command into settings: the sets to read, and their options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, Final

import yaml

from lit_loader.errors import AnnotationError, message_of

__all__ = [
    "UsageError",
    "as_option",
    "check_split",
    "parse_actions",
    "parse_options",
    "parse_parts",
    "parse_pixels",
    "parse_shares",
    "parse_splits",
    "parse_value",
    "split_names",
    "usage_errors",
]

_SPLIT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Settings that are arguments of their own.
_ARGUMENTS: Final = {
    "--to": "--to",
    "duplicate_iou": "--duplicate-iou",
    "ignored_kinds": "--ignore",
    "max_details": "--max-details",
    "min_images": "--min-images",
    "min_side": "--min-side",
    "root": "ROOT",
}
_MAX_FOLDS: Final = 1000
_USUAL_SPLITS: Final = ("train", "val", "test", "trainval")


class UsageError(Exception):
    """An argument of a command is wrong, independent of the data."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError or TypeError into a UsageError; errors in annotations pass unchanged."""
    try:
        yield
    except AnnotationError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(message_of(error, as_option)) from error


def as_option(name: str, value: Any) -> str:
    """Return a setting as an option of the command, such as ``--option header=true``.

    Args:
        name: The argument of a reader or writer; ``policy.NAME`` is a field of a `ReadPolicy`.
        value: The value, or ``...`` if the reader has to choose it.
    """
    owner, _, problem = name.partition(".")
    if owner == "policy":
        return f"--policy {problem}={'ACTION' if value is ... else value}"
    if name == "class_names":
        return "--class-names NAME,NAME"
    if name == "append":
        return "--append"
    if name == "storage":
        return "--storage" if value is ... else "no --storage"
    if name == "layout":
        return "--layout NAME"
    if name == "allow_loss":
        return "--allow-loss" if value else "the default without --allow-loss"
    if name in _ARGUMENTS:
        return f"{_ARGUMENTS[name]} {value}"
    text = "VALUE" if value is ... else value if isinstance(value, str) else json.dumps(value, default=str)
    return f"--storage {problem}={text}" if owner == "storage" else f"--option {name}={text}"


def parse_splits(words: Sequence[str], *, default: str | None) -> dict[str, str]:
    """Return the name of the file, folder or list of each split.

    Args:
        words: ``SPLIT=NAME``, or ``NAME`` alone, whose split is its stem if that is a usual name of a split.
        default: The split of other names, or None if the name itself is the name of the set.

    Raises:
        UsageError: If two names have the same split, or a split cannot be the name of a file.
    """
    splits: dict[str, str] = {}
    for word in words:
        split, sign, name = word.partition("=")
        # A path may contain `=`, as in `lists/fold=1.txt`.
        if not sign or not _SPLIT.fullmatch(split):
            name = word
            stem = PurePosixPath(word).stem
            split = word if default is None else stem if stem in _USUAL_SPLITS else default
        if default is not None:
            check_split(split)
        if not name:
            raise UsageError(f"{word!r} has no name after '='; give SPLIT=NAME, e.g. train=train.txt")
        if split in splits:
            problem = f"{splits[split]!r} and {name!r} would both be split {split!r}"
            raise UsageError(f"{problem}; give SPLIT=NAME, e.g. val={name}")
        splits[split] = name
    return splits


def check_split(split: str) -> str:
    """Return the name of a split, or raise UsageError if it cannot be the name of a file."""
    if not _SPLIT.fullmatch(split):
        raise UsageError(f"split {split!r} must be letters, digits, '_', '.' or '-', e.g. val")
    return split


def parse_options(
    words: Sequence[str], splits: Sequence[str], *, takes: Callable[[str, Any], bool]
) -> dict[str, dict[str, Any]]:
    """Return the options of each split; ``SPLIT:KEY=VALUE`` overrides ``KEY=VALUE``.

    Args:
        words: The options.
        splits: Names of the splits.
        takes: Function that returns True if an option accepts a value. Text that an option does not accept as YAML
            stays text, such as a class called ``no`` or a folder called ``2007``.

    Raises:
        UsageError: If a word is not of this form, or names an unknown split.
    """
    shared_options: dict[str, Any] = {}
    split_options: dict[str, dict[str, Any]] = {split: {} for split in splits}
    for word in words:
        key, value = _pair(word)
        # From the right, since the name of a set may contain a colon, and the name of an option does not.
        split, colon, name = key.rpartition(":")
        parsed = parse_value(value)
        # YAML 1.1 reads `no` as false and `2007` as a number, but a class or folder may have this name.
        if not takes(name, parsed) and takes(name, value):
            parsed = value
        if not colon:
            shared_options[name] = parsed
        elif split in split_options:
            split_options[split][name] = parsed
        else:
            raise UsageError(f"{word!r} is for the split {split!r}; the splits are {', '.join(splits)}")
    return {split: shared_options | split_options[split] for split in splits}


def split_names(text: str) -> list[str]:
    """Return the names in a text that separates them by commas."""
    return [name.strip() for name in text.split(",")]


def parse_pixels(text: str) -> int | None:
    """Return a number of pixels, or None for ``none``."""
    return None if text == "none" else int(text)


def parse_actions(words: Sequence[str]) -> dict[str, str]:
    """Return ``PROBLEM=ACTION`` words as a mapping."""
    return dict(map(_pair, words))


def parse_shares(words: Sequence[str], splits: Mapping[str, str]) -> dict[str, float]:
    """Return the share of the images of each split after holding out, ``train`` first; empty without words.

    Raises:
        UsageError: If the split ``train`` is missing, a new split exists already, or a share is outside (0, 1).
    """
    shares: dict[str, float] = {}
    for word in words:
        split, value = _pair(word)
        if check_split(split) in splits or split in shares:
            raise UsageError(f"--hold-out {word}: the split {split!r} exists already")
        try:
            shares[split] = float(value)
        except ValueError:
            raise UsageError(f"--hold-out {word}: {value!r} is not a number; give e.g. {split}=0.1") from None
    if shares and "train" not in splits:
        raise UsageError(f"--hold-out takes images of the split train; the splits are {', '.join(splits)}")
    # The split `train` keeps the images that are not held out.
    train_share = 1 - sum(shares.values())
    if not all(share > 0 for share in (train_share, *shares.values())):
        raise UsageError(f"--hold-out {shares}: each share must be above 0, and their sum below 1")
    return {"train": train_share, **shares} if shares else {}


def parse_parts(words: Sequence[str], folds: int | None) -> dict[str, float]:
    """Return the share of the images of each part: of splits such as ``train=0.8``, or of folds from ``"0"``.

    Args:
        words: Splits with their shares, ``NAME=SHARE``.
        folds: Number of folds, or None.

    Raises:
        UsageError: If there are neither splits nor folds, or both; or the shares are not positive with sum 1.
    """
    if (folds is None) == (not words):
        raise UsageError("give either --folds 5, or shares with sum 1: --share train=0.8 --share val=0.2")
    if folds is not None:
        if not 2 <= folds <= _MAX_FOLDS:
            raise UsageError(f"--folds {folds} must be 2 to {_MAX_FOLDS}")
        return {str(number): 1 / folds for number in range(folds)}
    shares: dict[str, float] = {}
    for word in words:
        name, value = _pair(word)
        if check_split(name) in shares:
            raise UsageError(f"--share {word}: {name!r} has a share already")
        try:
            shares[name] = float(value)
        except ValueError:
            raise UsageError(f"--share {word}: {value!r} is not a number; give e.g. {name}=0.1") from None
    total = sum(shares.values())
    if not all(share > 0 for share in shares.values()) or not abs(total - 1) < 1e-6:
        raise UsageError(f"--share {shares}: each share must be above 0, and their sum 1 instead of {total:g}")
    return shares


def parse_value(text: str) -> Any:
    """Parse a text as YAML: a number, true or false, null, a string, ``[...]`` or ``{...}``; else return the text.

    A separator such as ``,``, ``:`` or ``#``, which has a meaning in YAML, is returned as text.
    """
    # A date such as 2024-13-45 is a ValueError.
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    # YAML also reads an empty text as null, and `|` and `>` as the start of a block.
    is_none = value is None and text.strip().lower() in ("null", "~")
    is_nested = isinstance(value, dict | list) and text.lstrip().startswith(("[", "{"))
    is_scalar = isinstance(value, int | float | str) and not text.startswith(("|", ">"))
    return value if is_none or is_nested or is_scalar else text


def _pair(word: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not sign or not key:
        raise UsageError(f"{word!r} must be KEY=VALUE")
    return key, value
