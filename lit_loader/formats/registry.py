"""Formats by name: which reader and which writer a word in a config or a command stands for."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.report import shorten
from lit_loader.formats.option_types import fits, type_words

__all__ = ["FormatFunction", "READERS", "WRITERS", "find_format", "read_annotations", "write_annotations"]

_SHARED: Final = frozenset(
    (
        *("root", "class_names", "policy", "cache_dir", "use_cache", "num_workers", "progress"),
        *("table", "split", "allow_loss"),
    )
)
"""Arguments that are no options of a format: every reader or writer has them, or the registry gives them."""


@dataclass(frozen=True, kw_only=True)
class FormatFunction:
    """A reader or a writer, imported when it is first needed.

    Attributes:
        format: The format's name.
        function: Where the function is, as ``module:name`` below `lit_loader.formats`.
        description: One line about the format.
        named_by: The function's argument that takes the name of what is read or written.
        policy: Where the class of a reader's policy is.
    """

    format: str
    function: str
    description: str
    named_by: str = "name"
    policy: str = "policy:ReadPolicy"

    def load(self) -> Callable[..., Any]:
        """Return the function."""
        function: Callable[..., Any] = _load(self.function)
        return function

    def options(self) -> dict[str, inspect.Parameter]:
        """Return the options of the format: the function's arguments but those that all formats have."""
        parameters = inspect.signature(self.load()).parameters
        return {
            name: parameter
            for name, parameter in parameters.items()
            if name not in _SHARED and name != self.named_by
        }

    def takes(self, name: str, value: Any) -> bool:
        """Return whether a value is of the type that an option has; True for an option that is not known."""
        return fits(value, get_type_hints(self.load()).get(name, Any))

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse options that the format does not have or take.

        Raises:
            ValueError: If an option is not known or of another type, or one is needed and not given.
        """
        known = self.options()
        for name in options:
            if name not in known:
                told = ", ".join(known) or "none"
                meant = _meant(str(name), known)
                raise ValueError(f"format {self.format!r} has no option {name!r}; {meant}its options: {told}")
            if not self.takes(name, options[name]):
                words = type_words(get_type_hints(self.load())[name])
                value = shorten(repr(options[name]))
                raise ValueError(f"option {name}={value} of format {self.format!r} must be {words}")
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in options:
                raise ValueError(f"format {self.format!r} needs the option {name!r}")

    def make_policy(self, actions: Mapping[str, Any] | Any | None) -> Any:
        """Return a reader's policy, made from a mapping of problems to actions unless it is one.

        Raises:
            ValueError: If a problem or an action is not one that the format knows.
        """
        if actions is not None and not isinstance(actions, Mapping):
            return actions
        kind = _load(self.policy)
        known = [field.name for field in fields(kind)]
        for name in actions or {}:
            if name not in known:
                told = f"the policy of format {self.format!r} has no {name!r}; {_meant(str(name), known)}"
                raise ValueError(f"{told}it has: {', '.join(known)}")
        return kind(**(actions or {}))


_READERS = (
    FormatFunction(
        format="voc",
        function="voc:read_voc",
        description="VOC XML, with points and attributes too; NAME: a split in ImageSets/Main, or . for all XML",
        named_by="split",
        policy="voc_policy:VocPolicy",
    ),
    FormatFunction(
        format="coco",
        function="coco:read_coco",
        description="COCO JSON: boxes, crowds, keypoints; NAME: the JSON file",
    ),
    FormatFunction(
        format="points_list",
        function="points_list:read_points_list",
        description="text, a line an object, the columns as you say: path, points, class, box; NAME: the file",
    ),
    FormatFunction(
        format="points_csv",
        function="points_csv:read_points_csv",
        description="CSV, a row an object, with points or boxes; NAME: the file",
    ),
    FormatFunction(
        format="retinaface",
        function="retinaface:read_retinaface",
        description="RetinaFace label.txt: faces with 5 points below '# image' lines; NAME: the file",
    ),
    FormatFunction(
        format="wflw",
        function="wflw:read_wflw",
        description="WFLW text: 98 points, box, 6 attributes and path in a line; NAME: the file",
    ),
    FormatFunction(
        format="pts",
        function="pts:read_pts",
        description=".pts files (300-W, Menpo), one an object; NAME: their folder, or a pattern such as *.pts",
    ),
    FormatFunction(
        format="imglab",
        function="imglab:read_imglab",
        description="dlib imglab XML: boxes and named parts; NAME: the XML file",
    ),
    FormatFunction(
        format="image_folder",
        function="image_folder:read_image_folder",
        description="a folder of images for each class; NAME: the folder of these folders",
    ),
    FormatFunction(
        format="class_list",
        function="class_list:read_class_list",
        description="text, an image and its label or labels a line; NAME: the file",
    ),
)

_WRITERS = (
    FormatFunction(
        format="voc",
        function="voc_writer:write_voc",
        description="unified VOC XML: boxes, points, attributes; NAME: the split",
    ),
    FormatFunction(
        format="coco",
        function="coco_writer:write_coco",
        description="COCO JSON; NAME: the JSON file",
        named_by="path",
    ),
    FormatFunction(
        format="points_list",
        function="points_writer:write_points_list",
        description="text, a line an object; NAME: the file",
    ),
)

READERS: Final[Mapping[str, FormatFunction]] = MappingProxyType({entry.format: entry for entry in _READERS})
"""What can be read, by the format's name."""

WRITERS: Final[Mapping[str, FormatFunction]] = MappingProxyType({entry.format: entry for entry in _WRITERS})
"""What can be written, by the format's name."""


def read_annotations(
    format: str,
    root: Path | str,
    name: str,
    *,
    class_names: Sequence[str] | None = None,
    policy: Mapping[str, Any] | Any | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
    **options: Any,
) -> AnnotationTable:
    """Read annotations of a format that is chosen by name.

    Args:
        format: A name in `READERS`.
        root: The data set's folder; nothing outside of it is opened.
        name: What to read, relative to ``root``: a file, a folder, or a split, as the format's description
            says.
        class_names: Classes in the order of their ids; None: those that occur, sorted.
        policy: What to do about odd annotations: the format's policy, or its keywords.
        cache_dir: Where the table is cached; None: the user's cache folder.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read; None: by the amount of work.
        progress: Whether to draw a progress bar on a terminal.
        **options: The format's own, ``READERS[format].options()``.

    Raises:
        ValueError: If the format or an option is not known, or an option is missing.
        AnnotationError: If the annotations cannot be used; names file and line.
    """
    entry = find_format(READERS, format)
    entry.check(options)
    named = None if (entry.named_by, name) == ("split", ".") else name
    table: AnnotationTable = entry.load()(
        root,
        **{entry.named_by: named},
        class_names=class_names,
        policy=entry.make_policy(policy),
        cache_dir=cache_dir,
        use_cache=use_cache,
        num_workers=num_workers,
        progress=progress,
        **options,
    )
    return table


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
    """Write a table in a format that is chosen by name; images are not copied.

    Args:
        format: A name in `WRITERS`.
        table: The table.
        root: The folder of the new data set.
        name: The file to write, relative to ``root``; for ``"voc"`` it must be the table's split.
        allow_loss: Whether what the format cannot hold is left out instead of refused.
        progress: Whether to draw a progress bar on a terminal.
        **options: The format's own, ``WRITERS[format].options()``.

    Returns:
        What of the table was left out, in words.

    Raises:
        ValueError: If the format or an option is not known, or the table holds what cannot be written.
    """
    entry = find_format(WRITERS, format)
    entry.check(options)
    function = entry.load()
    options["allow_loss"] = allow_loss
    if "progress" in inspect.signature(function).parameters:
        options["progress"] = progress
    lost: list[str]
    if format == "voc":
        if name != table.split:
            raise ValueError(f"name={name!r} must be the table's split, {table.split!r}")
        lost = function(table, root, **options)
    elif entry.named_by == "path":
        lost = function(table, Path(root, name), **options)
    else:
        lost = function(table, root, name, **options)
    return lost


def find_format(entries: Mapping[str, FormatFunction], format: str) -> FormatFunction:
    """Return the entry of a format in `READERS` or `WRITERS`; raises ValueError if there is none."""
    if format not in entries:
        done = "written" if entries is WRITERS else "read"
        meant = _meant(str(format), entries)
        raise ValueError(f"format {format!r} cannot be {done}; {meant}formats: {', '.join(entries)}")
    return entries[format]


def _meant(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}? " if close else ""


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"lit_loader.formats.{module}"), name)
