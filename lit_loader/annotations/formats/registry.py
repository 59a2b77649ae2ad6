"""Formats by name: shipped formats, entry points of other packages, and formats that a program registers.

NOTE [Formats of others]
    A package adds a format by an entry point of the group ``lit_loader.formats`` whose value is a subclass of
    `Reader` or `Writer`; in pyproject.toml::

        [project.entry-points."lit_loader.formats"]
        tiny = "my_package.tiny:TinyReader"

    Entry points are searched (10 ms) and imported only when formats are listed, or for a format that is neither
    shipped nor registered. An entry point that fails, is not a format, or has the name of another format is ignored
    with a warning, so that a broken package does not disable the other formats.
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
_SHORT_NAMES: Final = {"csv": "keypoints_csv"}  # the name of the config group option
_Kind = type[Reader] | type[Writer]
_KindT = TypeVar("_KindT", bound=_Kind)
_T = TypeVar("_T", Reader, Writer)

# Keyed by base class and format, because a reader and a writer may share a name.
_registered: dict[tuple[type, str], _Kind] = {}


def register_format(kind: _KindT) -> _KindT:
    """Register a reader or writer class under its ``format``; usable as a class decorator.

    Raises:
        ValueError: If another class of that kind has the same name.
    """
    base = Writer if issubclass(kind, Writer) else Reader
    # A module that is imported twice, such as a notebook cell, may register the same class again.
    other = _all(base).get(kind.format)
    if other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(
            f"format={kind.format!r} of {kind.__qualname__} is taken by {other.__qualname__}; choose another name"
        )
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
        ValueError: If there is none; lists the formats.
    """
    reader: type[Reader] = _find(Reader, format, "read")
    return reader


def find_writer(format: str) -> type[Writer]:
    """Return the writer of a format.

    Raises:
        ValueError: If there is none; lists the formats.
    """
    writer: type[Writer] = _find(Writer, format, "written")
    return writer


def format_options(kind: _Kind) -> dict[str, Field[Any]]:
    """Return the options of a format: the fields of its class."""
    return {option.name: option for option in fields(kind)}


def takes_option(kind: _Kind, name: str, value: Any) -> bool:
    """Return True if a value has the type of an option, or the option is unknown."""
    return fits(value, get_type_hints(kind).get(name, Any))


def make_format(kind: type[_T], options: Mapping[str, Any]) -> _T:
    """Return a reader or writer with some options.

    Raises:
        ValueError: If an option is unknown or has a wrong type, or a required option is missing.
    """
    option_fields = format_options(kind)
    hints = get_type_hints(kind)
    for name, value in options.items():
        if name not in option_fields:
            raise ValueError(
                f"format {kind.format!r} has no option {name!r}; {_suggestion(name, option_fields, 'its options')}"
            )
        if not fits(value, hints[name]):
            option_text = f"{name}={shorten(repr(value))}"
            raise ValueError(f"option {option_text} of format {kind.format!r} must be {type_text(hints[name])}")
    for name, option in option_fields.items():
        # Checked here, because the constructor's own TypeError would name Python arguments instead of the format.
        if option.default is MISSING and option.default_factory is MISSING and name not in options:
            raise ValueError(f"format {kind.format!r} needs the option {name!r}")
    return kind(**options)


def read_annotations(format: str, root: Path | str | Folder, name: str = ".", **options: Any) -> AnnotationTable:
    """Read a set of any format: ``read_annotations("coco", "data", "val.json", image_dir="val2017")``.

    Args:
        format: The format's name; `readers` lists them.
        root: The data set's folder.
        name: Set to read, relative to the root: a file, a folder or a split, depending on the format.
        options: Fields of `ReadOptions`, where ``policy`` may also be a mapping of its fields, and the options of the
            format.

    Raises:
        ValueError: If the format or an option is unknown, or an option has a wrong type.
        AnnotationError: If the annotations cannot be used; names file and line.
    """
    kind = find_reader(format)
    # Fields of `ReadOptions` apply to every format; all other options belong to the format.
    shared = {field.name: options.pop(field.name) for field in fields(ReadOptions) if field.name in options}
    policy = shared.get("policy")
    if not isinstance(policy, ReadPolicy):
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
    """Write a table in any format that has a writer, and return descriptions of the values it could not hold.

    Args:
        format: The format's name; `writers` lists them.
        table: The table.
        root: Folder to write to.
        name: Target, depending on the format: a file relative to the root, or a split.
        allow_loss: Whether to leave out the values that the format cannot hold.
        progress: Whether to draw a progress bar on a terminal.
        options: The options of the format.

    Raises:
        ValueError: If the format cannot hold values other than ids and ``allow_loss`` is False, or as for
            `read_annotations`.
    """
    writer = make_format(find_writer(format), options)
    return writer.write_table(table, root, name, allow_loss=allow_loss, progress=progress)


def _make_policy(actions: Mapping[str, Any]) -> ReadPolicy:
    problems = [field.name for field in fields(ReadPolicy)]
    for name in actions:
        if name not in problems:
            raise ValueError(f"the policy has no {name!r}; {_suggestion(name, problems, 'it has')}")
    return ReadPolicy(**actions)


def policy_text() -> str:
    """Return the problems of a `ReadPolicy` with their actions, one per line, the default first."""
    hints = get_type_hints(ReadPolicy)
    lines = []
    for field in fields(ReadPolicy):
        actions = [action for action in get_args(hints[field.name]) if action != field.default]
        lines.append(f"{field.name}={field.default} (or {', '.join(actions)})")
    return "\n".join(lines)


def _all(base: Any) -> dict[str, Any]:
    """Return the classes of one kind by format, including entry points."""
    kinds = _shipped_and_registered(base)
    for point in entry_points(group=_GROUP):
        try:
            kind = point.load()
            if not (isinstance(kind, type) and issubclass(kind, (Reader, Writer))):
                raise TypeError("it is neither a Reader nor a Writer")
            if issubclass(kind, base):
                other = kinds.setdefault(kind.format, kind)
                if other is not kind:
                    raise ValueError(f"its format {kind.format!r} is taken by {other.__qualname__}")
        except (Exception, SystemExit) as error:  # a module may call sys.exit() when it is imported
            warnings.warn(
                f"entry point {point.name}={point.value!r} of {_GROUP!r} is ignored: {type(error).__name__}: {error}",
                stacklevel=2,
            )
    return kinds


def _shipped_and_registered(base: Any) -> dict[str, Any]:
    """Return the classes of one kind by format, without entry points."""
    registered = {format: kind for (kind_base, format), kind in _registered.items() if kind_base is base}
    return {kind.format: kind for kind in _shipped(base)} | registered


@cache
def _shipped(base: Any) -> list[Any]:
    """Return the readers or writers of this package, in the order of the names of their modules or subpackages."""
    names = (module_info.name for module_info in iter_modules([str(Path(__file__).parent)]))
    modules = [import_module(f"lit_loader.annotations.formats.{name}") for name in names]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, base)
        # A class that a module imports belongs to the module, or the subpackage, that defines it.
        if f"{kind.__module__}.".startswith(f"{module.__name__}.")
        if not isabstract(kind)
    ]


def _find(base: Any, format: str, verb: str) -> Any:
    kinds = _shipped_and_registered(base)
    if format not in kinds:
        # A registered format of the short name has priority.
        format = _SHORT_NAMES.get(format, format)
    if format not in kinds:
        # Entry points last, because searching for them is slow.
        kinds = _all(base)
    if format not in kinds:
        raise ValueError(
            f"format {format!r} cannot be {verb}; {_suggestion(format, kinds, 'formats')}; to add your own, define an "
            f"entry point of the group {_GROUP!r}, or call register_format in your program"
        )
    return kinds[format]


def _suggestion(name: object, names: Iterable[str], label: str) -> str:
    """Return the end of a message about an unknown name: the most similar known name, and all known names."""
    names = list(names)
    similar = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    question = f"did you mean {similar[0]!r}? " if similar else ""
    return f"{question}{label}: {', '.join(names) or 'none'}"
