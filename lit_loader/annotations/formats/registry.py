"""Formats by name: those of this package, those of others by entry points, and those that a program registers.

NOTE [Formats of others]
    A package makes a format known by an entry point of the group ``lit_loader.formats``, whose value is a subclass of
    `Reader` or of `Writer`; in pyproject.toml::

        [project.entry-points."lit_loader.formats"]
        tiny = "my_package.tiny:TinyReader"

    Entry points are looked up (10 ms) and imported when formats are listed, or one is asked for that is neither shipped
    nor registered; one that fails, is not a format, or has the name of another format is left out with a warning, so
    that a broken package stops no other format.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, TypeVar, get_args, get_type_hints

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.reader import Reader, ReadOptions
from lit_loader.annotations.formats.writer import Writer
from lit_loader.annotations.problems import shorten
from lit_loader.foundation.signatures import fits, type_text

__all__ = [
    "find_reader",
    "find_writer",
    "format_options",
    "make_format",
    "policy_text",
    "read_annotations",
    "readers",
    "register_format",
    "takes_option",
    "write_annotations",
    "writers",
]

_GROUP: Final = "lit_loader.formats"
_SHORT_NAMES: Final = {"csv": "keypoints_csv"}  # as the config of the data set is called
_Kind = type[Reader] | type[Writer]
_KindT = TypeVar("_KindT", bound=_Kind)
_T = TypeVar("_T", Reader, Writer)

_registered: dict[tuple[type, str], _Kind] = {}


def register_format(kind: _KindT) -> _KindT:
    """Make a reader or a writer known under its ``format``; also as a decorator of its class.

    Raises:
        ValueError: If another class of that kind has the name.
    """
    base = Writer if issubclass(kind, Writer) else Reader
    other = _all(base).get(kind.format)
    if other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        names = f"{kind.__qualname__} is that of {other.__qualname__}"
        raise ValueError(f"format={kind.format!r} of {names}; take another")
    _registered[base, kind.format] = kind
    return kind


def readers() -> dict[str, type[Reader]]:
    """Return all readers by format."""
    return _all(Reader)


def writers() -> dict[str, type[Writer]]:
    """Return all writers by format."""
    return _all(Writer)


def find_reader(format: str) -> type[Reader]:
    """Return the reader of a format.

    Raises:
        ValueError: If there is none; names those that there are.
    """
    found: type[Reader] = _find(Reader, format, "read")
    return found


def find_writer(format: str) -> type[Writer]:
    """Return the writer of a format.

    Raises:
        ValueError: If there is none; names those that there are.
    """
    found: type[Writer] = _find(Writer, format, "written")
    return found


def format_options(kind: _Kind) -> dict[str, Field[Any]]:
    """Return the options of a format: the fields of its class."""
    return {option.name: option for option in fields(kind)}


def takes_option(kind: _Kind, name: str, value: Any) -> bool:
    """Return whether a value is of the type of an option; True for an option that is not known."""
    return fits(value, get_type_hints(kind).get(name, Any))


def make_format(kind: type[_T], options: Mapping[str, Any]) -> _T:
    """Return a reader or writer with these options.

    Raises:
        ValueError: If an option is not known or of another type, or one is needed and not given.
    """
    known, hints = format_options(kind), get_type_hints(kind)
    for name, value in options.items():
        if name not in known:
            options_are = _known(name, known, "its options")
            raise ValueError(f"format {kind.format!r} has no option {name!r}; {options_are}")
        if not fits(value, hints[name]):
            given = f"{name}={shorten(repr(value))}"
            raise ValueError(f"option {given} of format {kind.format!r} must be {type_text(hints[name])}")
    for name, option in known.items():
        if option.default is MISSING and option.default_factory is MISSING and name not in options:
            raise ValueError(f"format {kind.format!r} needs the option {name!r}")
    return kind(**options)


def read_annotations(
    format: str, root: Path | str | Folder, name: str = ".", **options: Any
) -> AnnotationTable:
    """Read a set of any format: ``read_annotations("coco", "data", "val.json", image_dir="val2017")``.

    Args:
        format: The format's name; `readers` lists them.
        root: The data set's folder.
        name: What to read, relative to the root: a file, a folder or a split, as the format takes it.
        options: The fields of `ReadOptions`, with ``policy`` also as a mapping of its fields, and the options of the
            format.

    Raises:
        ValueError: If the format or an option is not known, or an option is of another type.
        AnnotationError: If the annotations cannot be used; names file and line.
    """
    kind = find_reader(format)
    shared = {field.name: options.pop(field.name) for field in fields(ReadOptions) if field.name in options}
    if not isinstance(policy := shared.get("policy"), ReadPolicy):
        shared["policy"] = _make_policy(policy or {})
    return make_format(kind, options).read_table(root, name, ReadOptions(**shared))


def write_annotations(
    format: str,
    table: AnnotationTable,
    root: Path | str,
    name: str,
    *,
    allow_loss: bool = False,
    progress: bool = True,
    **options: Any,
) -> list[str]:
    """Write a table in any format that has a writer, and return what the format could not hold.

    Args:
        format: The format's name; `writers` lists them.
        table: The table.
        root: The folder to write below.
        name: What to write, as the format takes it: a file relative to the root, or a split.
        allow_loss: Whether to leave out what the format cannot hold.
        progress: Whether to draw a progress bar on a terminal.
        options: The options of the format.

    Raises:
        ValueError: If the format cannot hold the table, ids aside, and ``allow_loss`` is False, or as
            `read_annotations`.
    """
    writer = make_format(find_writer(format), options)
    return writer.write_table(table, root, name, allow_loss=allow_loss, progress=progress)


def _make_policy(actions: Mapping[str, Any]) -> ReadPolicy:
    known = [field.name for field in fields(ReadPolicy)]
    for name in actions:
        if name not in known:
            raise ValueError(f"the policy has no {name!r}; {_known(name, known, 'it has')}")
    return ReadPolicy(**actions)


def policy_text() -> str:
    """Return the problems of a `ReadPolicy` with their actions, one a line, the default first."""
    hints = get_type_hints(ReadPolicy)
    lines = []
    for field in fields(ReadPolicy):
        actions = [action for action in get_args(hints[field.name]) if action != field.default]
        lines.append(f"{field.name}={field.default} (or {', '.join(actions)})")
    return "\n".join(lines)


def _all(base: Any) -> dict[str, Any]:
    """Return the classes of one kind by format, those of entry points too."""
    found = _at_hand(base)
    for point in entry_points(group=_GROUP):
        try:
            kind = point.load()
            if not (isinstance(kind, type) and issubclass(kind, (Reader, Writer))):
                raise TypeError("it is neither a Reader nor a Writer")
            if issubclass(kind, base) and (other := found.setdefault(kind.format, kind)) is not kind:
                raise ValueError(f"its format {kind.format!r} is that of {other.__qualname__}")
        except (Exception, SystemExit) as error:  # a module may call sys.exit() when it is imported
            message = f"entry point {point.name}={point.value!r} of {_GROUP!r} is left out"
            warnings.warn(f"{message}: {type(error).__name__}: {error}", stacklevel=2)
    return found


def _at_hand(base: Any) -> dict[str, Any]:
    """Return the classes of one kind that are shipped or registered, by format."""
    shipped = {kind.format: kind for kind in _shipped(base)}
    return shipped | {format: kind for (of, format), kind in _registered.items() if of is base}


@cache
def _shipped(base: Any) -> list[Any]:
    """Return the readers or writers in the modules of this package, by the names of these."""
    names = (each.name for each in iter_modules([str(Path(__file__).parent)]))
    modules = [import_module(f"lit_loader.annotations.formats.{name}") for name in names]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == module.__name__
        if not isabstract(kind)
    ]


def _find(base: Any, format: str, done: str) -> Any:
    known = _at_hand(base)
    if format not in known:
        format = _SHORT_NAMES.get(format, format)
    if format not in known and format not in (known := _all(base)):
        raise ValueError(
            f"format {format!r} cannot be {done}; {_known(format, known, 'formats')}; one of your own is made known by "
            f"an entry point of the group {_GROUP!r}, in one program by register_format"
        )
    return known[format]


def _known(name: object, known: Iterable[str], what: str) -> str:
    """Return the likeliest name that was meant, and all that are known, as the end of a message."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    return f"{f'did you mean {close[0]!r}? ' if close else ''}{what}: {', '.join(names) or 'none'}"
