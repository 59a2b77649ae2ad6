"""The arguments of a command as settings: which sets to read, under which options."""

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
    "parse_shares",
    "parse_splits",
    "parse_value",
    "usage_errors",
]

_SPLIT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_USUAL: Final = ("train", "val", "test", "trainval")


class UsageError(Exception):
    """The command is wrong, whatever the data is."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise what refuses a value inside as UsageError; errors in the annotations stay what they are."""
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
        return f"--policy {problem}=ACTION"
    if name == "class_names":
        return "--class-names NAME,NAME"
    if name == "allow_loss":
        return "--allow-loss" if value else "the default without --allow-loss"
    text = "VALUE" if value is ... else value if isinstance(value, str) else json.dumps(value, default=str)
    return f"--option {name}={text}"


def parse_splits(words: Sequence[str], *, default: str | None) -> dict[str, str]:
    """Return for each split the name of what is read.

    Args:
        words: ``SPLIT=NAME``, or ``NAME`` alone: its split is its stem if that is a usual one.
        default: The split of other names, or None where a name without ``SPLIT=`` is the name of its set.

    Raises:
        UsageError: If two names are of one split, or a split cannot be a file's name.
    """
    splits: dict[str, str] = {}
    for word in words:
        split, sign, name = word.partition("=")
        if not sign or not _SPLIT.fullmatch(split):
            name, stem = word, PurePosixPath(word).stem
            split = word if default is None else stem if stem in _USUAL else default
        if default is not None:
            check_split(split)
        if not name:
            raise UsageError(f"{word!r} names nothing to read; give SPLIT=NAME, e.g. train=train.txt")
        if split in splits:
            problem = f"{splits[split]!r} and {name!r} would both be the split {split!r}"
            raise UsageError(f"{problem}; give SPLIT=NAME, e.g. val={name}")
        splits[split] = name
    return splits


def check_split(split: str) -> str:
    """Return a split's name if it can be a file's name, else raise UsageError."""
    if not _SPLIT.fullmatch(split):
        raise UsageError(f"split {split!r} must be letters, digits, '_', '.' or '-', e.g. val")
    return split


def parse_options(
    words: Sequence[str], splits: Sequence[str], *, takes: Callable[[str, Any], bool]
) -> dict[str, dict[str, Any]]:
    """Return for each split its options; ``SPLIT:KEY=VALUE`` is laid over ``KEY=VALUE``.

    Args:
        words: The options.
        splits: The splits.
        takes: Whether an option takes a value; what it does not take as YAML stays text, such as a class
            called ``no`` or a folder called ``2007``.

    Raises:
        UsageError: If a word is not of that form or names another split.
    """
    shared: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {split: {} for split in splits}
    for word in words:
        key, value = _pair(word)
        split, sign, rest = key.partition(":")
        name = rest if sign else key
        parsed = parse_value(value)
        if not takes(name, parsed) and takes(name, value):
            parsed = value
        if not sign:
            shared[name] = parsed
        elif split in own:
            own[split][name] = parsed
        else:
            raise UsageError(f"{word!r} is for the split {split!r}; there are {', '.join(splits)}")
    return {split: shared | own[split] for split in splits}


def parse_actions(words: Sequence[str]) -> dict[str, str]:
    """Return ``PROBLEM=ACTION`` words as a mapping."""
    return dict(map(_pair, words))


def parse_shares(words: Sequence[str], splits: Mapping[str, str]) -> dict[str, float]:
    """Return the share of the images that each new split gets, that of ``train`` first; empty without words.

    Raises:
        UsageError: If there is no ``train``, a split is there already, or shares are not in (0, 1).
    """
    shares: dict[str, float] = {}
    for word in words:
        split, value = _pair(word)
        if check_split(split) in splits or split in shares:
            raise UsageError(f"--hold-out {word}: there is a split {split!r} already")
        try:
            shares[split] = float(value)
        except ValueError:
            raise UsageError(f"--hold-out {word}: {value!r} is not a number; give e.g. {split}=0.1") from None
    if shares and "train" not in splits:
        raise UsageError(f"--hold-out takes images of the split train; there are {', '.join(splits)}")
    rest = 1 - sum(shares.values())
    if not all(share > 0 for share in (rest, *shares.values())):
        raise UsageError(f"--hold-out {shares}: each share must be above 0, and some must be left to train")
    return {"train": rest, **shares} if shares else {}


def parse_value(text: str) -> Any:
    """Return a text as YAML reads it: a number, a truth value, none, text, ``[...]`` or ``{...}``; else the text.

    A character such as ``,``, ``:`` or ``#``, which YAML takes for its own, is text.
    """
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    is_none = value is None and text.strip().lower() in ("null", "~")
    is_nested = isinstance(value, dict | list) and text.lstrip().startswith(("[", "{"))
    is_scalar = isinstance(value, int | float | str) and not text.startswith(("|", ">"))
    return value if is_none or is_nested or is_scalar else text


def _pair(word: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not sign or not key:
        raise UsageError(f"{word!r} must be KEY=VALUE")
    return key, value
