"""Read the files of one format into an `AnnotationTable`, by the same steps for all formats.

NOTE [One read]
    inputs    `Reader.inputs` lists the files of a set without opening them.
    cache     If a table of the same files and options is in the cache, it is opened instead of reading the files.
    rows      `Reader.read` adds the content of each file to `Rows`; several processes read many files.
    table     `build_table` looks up the images, applies the `ReadPolicy` and fills the columns.

NOTE [When a cached table is stale]
    The cache key consists of the format, its options, and name, size and time of each annotation file. Images are not
    part of it, so new pictures under the root change nothing, unless the set is defined by a folder of images: then
    their names are part of the key. The table's content depends on images whose size was read from the header, that
    were missing, or that EXIF turns away from their stated size. The table holds a stamp of each of these, and is
    rebuilt if one has changed. A table from which the policy dropped images is not cached, because the images may
    appear later. An image that agreed with its stated size has no stamp, because checking all images would delay every
    start of a run; data sets refuse such an image when they load it, if it was turned since.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from lit_loader.annotations.cache import cache_key, keep, load_last, load_unchanged, was_read
from lit_loader.annotations.formats.folder import Folder, file_stamp
from lit_loader.annotations.formats.parallel import iter_chunks, status_spinner
from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.rules import build_table
from lit_loader.annotations.formats.text_file import read_lines
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.places import DEFAULT_LISTS
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError, UnsafePathError
from lit_loader.foundation.files import cache_folder

__all__ = ["Inputs", "ReadOptions", "Reader"]

_KITTI: Final = "KITTI labels: convert them to COCO or YOLO"
_DOTA: Final = "DOTA labels of oriented boxes: read them as 'dota'"
_CREATEML: Final = "CreateML JSON: export it as COCO or Pascal VOC"
_LABEL_STUDIO: Final = "Label Studio JSON: export it from Label Studio as COCO, YOLO or Pascal VOC"
_ICDAR: Final = "ICDAR text: convert its quadrangles to COCO polygons"
_MPII: Final = "MPII's poses: convert them to COCO keypoints"
_TPS: Final = "TPS of tpsDig: write path, x and y as CSV, which keypoints_csv reads with schema and y_up=True"
_DEEPLABCUT: Final = (
    "DeepLabCut CSV: keypoints_txt reads it with separator=',', header=3, columns='path points' and schema, the "
    "number of points; join a path that is in three columns"
)
_OTHER_FORMATS: Final = {
    rb"<annotations>\s*<version>": "CVAT XML: export it from CVAT as COCO or Pascal VOC",
    rb"<sourceAnnotation>LabelMe|</deleted>\s*<verified>": "old LabelMe XML: convert it to COCO or Pascal VOC",
    rb"<dataset>\s*<(name|comment|images)\b": "imglab XML: read it as 'imglab'",
    rb'"(shape_attributes|_via_\w+)"\s*:': "VIA JSON: export it from VIA as COCO",
    rb'"(shapes|shape_type|imageData)"\s*:': "LabelMe JSON: read it as 'labelme'",
    rb'"coordinates"\s*:\s*\{': _CREATEML,
    rb'"(completed_by|from_name|annotation_id)"\s*:': _LABEL_STUDIO,
    rb'"securityToken"\s*:|"asset"\s*:\s*\{': "VoTT JSON: export it from VoTT as CSV, which keypoints_csv reads",
    rb'"joints(_vis)?"\s*:': _MPII,
    rb'"(images|annotations|categories)"\s*:\s*\[': "COCO JSON: read it as 'coco'",
    rb"\A(ImageID,(Source|Subset)|MaskPath,ImageID|LabelName,)": "Open Images CSV: convert it to COCO",
    rb'\A"?image"?,"?xmin"?,"?ymin': "VoTT CSV: read it as 'keypoints_csv'",
    rb"\ANAME_ID,X,": "VGGFace2 CSV: keypoints_csv reads it with box_columns=X,Y,W,H and box_format=xywh",
    rb"\ANAME_ID,P1X,": "VGGFace2 CSV: keypoints_csv reads it with schema=face_5",
    rb"\Ascorer,": _DEEPLABCUT,
    rb"\A\x89HDF\r\n": "an HDF5 file: for DeepLabCut, read the CSV file of the same name",
    rb"\AMATLAB 5\.0 MAT-file": _MPII,
    rb"\A\s*LM3?=\d": _TPS,
    rb"\A(imagesource|gsd):|\A(-?[\d.]+ ){8}[A-Za-z][\w-]* [0-2]\s": _DOTA,
    rb"\A[A-Za-z_]+ -?[\d.]+ -?\d (-?[\d.]+ ){11}-?[\d.]+( -?[\d.]+)?\s": _KITTI,
    rb"\A(\xef\xbb\xbf)?(-?\d+,\s?){8}\S|\A(\d+,? ){4}\"": _ICDAR,
}
"""Start of a file in another format, as a pattern, and what to do about it."""

_OTHER_FOLDERS: Final = {
    "label_[0-9]": _KITTI,
    "labelTxt*": _DOTA,
    "*.vott": "a VoTT project: export it from VoTT as CSV, which keypoints_csv reads",
    "*createml.json": _CREATEML,
    "gt_*.txt": _ICDAR,
    "mpii_*.mat": _MPII,
    "*.tps": _TPS,
    "labeled-data": _DEEPLABCUT,
}
"""File or folder names that are typical of other formats, as patterns, and what to do about them."""

_IMAGE_PROBLEMS: Final = ("missing_image", "turned_image", "unreadable_image")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of every reader, whatever its format.

    Args:
        class_names: Classes in the order of their ids, or None for the classes that the files list, and without a
            list for the classes that occur, sorted.
        split: The table's split, or None for the one that a file names.
        policy: What to do about each kind of problem.
        cache_dir: Folder of cached tables, or None for the user's cache folder.
        use_cache: Whether to open the table from the cache and to store it there.
        trust_cache: Whether to open the latest table read with these options without checking the files. Meant for a
            process that knows that another one on this machine has just read them. Without such a table in the cache
            the files are read as usual.
        num_workers: Processes that read, or None to decide by the number of files; a single file is read in this
            process.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        TypeError: If ``class_names`` is a string.
        ValueError: If ``class_names`` is empty or has duplicates, or ``num_workers`` is negative.
    """

    class_names: Sequence[str] | None = None
    split: str | None = None
    policy: ReadPolicy = field(default_factory=ReadPolicy)
    cache_dir: Path | str | None = None
    use_cache: bool = True
    trust_cache: bool = False
    num_workers: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.class_names, str):
            raise TypeError(f"class_names={self.class_names!r} must be a sequence of names, not a string")
        if self.class_names is not None:
            # All at once, because each of these would mix up the ids of classes.
            names = tuple(self.class_names)
            if not names or len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
                raise ValueError(f"class_names={names} must be at least one name, all different, none empty")
            # A list would make equal options unequal, and could be changed later.
            object.__setattr__(self, "class_names", names)
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(f"num_workers={self.num_workers} must be None or >= 0")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The files of a set.

    Attributes:
        files: Paths relative to the root; their names, sizes and times are part of the cache key.
        units: Arguments of the calls of `Reader.read`, one per call; default: the files.
        unit_files: Further files, each read by one unit with `Rows.read_bytes`.
        split: Split that the name refers to, or None.
        listed: Images that belong to the set because a folder contains them; only their names are part of the key.
    """

    files: Sequence[str]
    units: Sequence[Any] | None = None
    unit_files: Sequence[str] = ()
    split: str | None = None
    listed: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reader of one format; the fields of a subclass, a frozen keyword-only dataclass, are the format's options.

    A subclass defines `format`, `description` and `read`. Once it is registered by `register_format` or by an entry
    point of the group ``lit_loader.formats``, `read_annotations`, the command line and Hydra offer it and its options.

    Attributes:
        format: The format's name.
        description: One line for ``--help`` that explains NAME.
        entry_lists: Names of the lists of images and of objects in a file, for places of entries such as
            ``annotations[17]``, which `Rows` knows by their ``index`` instead of their ``line``.
        version: Increased when the same files give another table, so that tables cached before are ignored.
    """

    format: ClassVar[str]
    description: ClassVar[str]
    entry_lists: ClassVar[tuple[str, str]] = DEFAULT_LISTS
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        # Formats with points have the options `schema` and `keypoints`; the base class checks them for all of them.
        schema = getattr(self, "schema", None)
        if schema is not None and not getattr(self, "keypoints", True):
            raise ValueError(f"{schema=} names points, but keypoints=False reads none; remove one of them")
        # An invalid schema is refused here, before any file is read.
        self.given_keypoints()

    @abstractmethod
    def read(self, rows: Rows, unit: Any) -> None:
        """Add the content of one unit.

        Args:
            rows: Builder of images, objects, problems and declared names; ``rows.file`` is the unit if that is a file.
            unit: A path relative to the root, or another unit that `inputs` returned.

        Raises:
            AnnotationError: If the file is not of this format; with many files the policy decides on it.
        """

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the files of a set; by default the file called ``name``."""
        return Inputs(files=[name])

    def finish(self, rows: Rows) -> None:  # noqa: B027 # most formats need not override it
        """Report problems of the set as a whole, after all of its units were read; by default none."""

    def given_keypoints(self) -> KeypointSchema | None:
        """Return the schema of an object's points if an option sets it, else None."""
        # Formats without points have no such option.
        schema = getattr(self, "schema", None)
        return None if schema is None else keypoint_schema(schema)

    def lines(self, rows: Rows, name: str) -> Iterator[tuple[int, str]]:
        """Yield the lines of a text file with their numbers, from 1.

        Raises:
            AnnotationError: If the file is not UTF-8 text, or has lines of more than 256 KiB.
        """
        return read_lines(rows.root, name)

    # -- for the caller -------------------------------------------------------------------------------------

    def read_table(self, root: Path | str | Folder, name: str, options: ReadOptions | None = None) -> AnnotationTable:
        """Return the table of a set, from the cache if possible.

        Args:
            root: Folder of the data set; one `Folder` shared by several sets lists each folder once.
            name: Set to read, relative to the root: a file, a folder or a split, depending on the format.
            options: Options that every format has.

        Raises:
            AnnotationError: If the annotations cannot be used; names file and line.
            UnsafePathError: If a path in a file leads out of the root.
        """
        options = ReadOptions() if options is None else options
        folder = root if isinstance(root, Folder) else Folder(root)
        with _other_format_named(self.format, folder, name):
            if not options.use_cache:
                return self._build(folder, self.inputs(folder, name), options)[0]
            return self._read_through_cache(folder, name, options)

    def _read_through_cache(self, folder: Folder, name: str, options: ReadOptions) -> AnnotationTable:
        """Return the table of a set from the cache, or build it and store it there."""
        cache = cache_folder(options.cache_dir)
        make_key = partial(cache_key, reader=self.format, version=self.version, root=folder.root)
        # The request identifies what to read and how; the key adds the state of the files.
        settings = self._settings(name, options)
        request = make_key(settings=settings)
        if options.trust_cache:
            table = load_last(folder=cache, request=request, root=folder.root)
            if table is not None:
                return table
        inputs = self.inputs(folder, name)
        # Set after the request: listing an images folder is what `trust_cache` avoids.
        settings["listed"] = inputs.listed
        files = inputs.files
        unit_files = inputs.unit_files
        if inputs.units is None:  # every file is a unit
            files = ()
            unit_files = inputs.files
        make_key = partial(make_key, settings=settings, files=[*files, *unit_files])
        stamps = _stamps(folder, files)
        # A first read has no key to compare, so each file is stamped only by the process that reads it. This saves
        # a pass over all files.
        if was_read(folder=cache, request=request):
            key = make_key(stamps=stamps + _stamps(folder, unit_files))
            table = load_unchanged(folder=cache, key=key, request=request, root=folder.root)
            if table is not None:
                return table
        table, rows = self._build(folder, inputs, options)
        unit_stamps = rows.stamps_of(unit_files)
        # A table without a stamp of every file could become stale unnoticed. One with dropped images must be read
        # again, because the images may exist next time.
        has_dropped = any(table.report.count(kind, "drop") for kind in _IMAGE_PROBLEMS)
        if unit_stamps is None or has_dropped:
            return table
        return keep(table, folder=cache, key=make_key(stamps=stamps + unit_stamps), request=request)

    def _settings(self, name: str, options: ReadOptions) -> dict[str, Any]:
        """Return every setting that changes the table, as plain values."""
        schema = self.given_keypoints()
        return {
            "name": name,
            "options": {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "schema"},
            # A schema given by name and the same one given as a mapping share a cached table.
            "schema": None if schema is None else asdict(schema),
            "class_names": options.class_names,
            "split": options.split,
            "policy": asdict(options.policy),
        }

    def _build(self, folder: Folder, inputs: Inputs, options: ReadOptions) -> tuple[AnnotationTable, Rows]:
        """Read all units, and return their table and rows."""
        units = inputs.files if inputs.units is None else inputs.units
        is_single = len(units) == 1
        read = partial(_read_chunk, reader=self, root=folder.root, options=options, is_single=is_single)
        num_workers = 0 if is_single else options.num_workers
        progress = options.progress
        # A set may have a million files.
        names = ", ".join([*inputs.files[:3], *inputs.unit_files[:3]][:3])
        # Listing folders and building the table take time before and after the progress bar.
        with status_spinner(f"Reading {shorten(names)}", progress=progress):
            description = "Reading annotations"
            chunks = iter_chunks(read, units, num_workers=num_workers, progress=progress, description=description)
            # A set without files gives an empty table.
            # The first chunk takes the others, so a set of one chunk is never copied.
            rows = next(chunks, None) or Rows(folder.root, options.policy, options.class_names)
            for chunk in chunks:
                rows.join(chunk)
            self.finish(rows)
            table = build_table(
                rows,
                folder,
                class_names=options.class_names,
                keypoints=self.given_keypoints(),
                split=inputs.split if options.split is None else options.split,
                num_workers=options.num_workers,
                progress=progress,
            )
        return table, rows


def _stamps(folder: Folder, files: Sequence[str]) -> list[int]:
    """Return size and time (ns) of each file, concatenated."""
    return [number for file in files for number in folder.stamp(file)]


def _read_chunk(units: Sequence[Any], *, reader: Reader, root: Path, options: ReadOptions, is_single: bool) -> Rows:
    # Each chunk has its own `Rows`; the main process joins them in order, so numbers do not depend on workers.
    rows = Rows(root, options.policy, options.class_names)
    rows.entry_lists = reader.entry_lists
    for unit in units:
        rows.file = unit if isinstance(unit, str) else ""
        if rows.file:
            # A file that cannot be stamped cannot be read either, and reading it reports the reason.
            with suppress(OSError, ValueError):
                rows.put_stamp(*file_stamp(f"{root}/{unit}"))
        try:
            reader.read(rows, unit)
        except AnnotationError as error:
            # A single file has nothing to fall back on, so the policy may not drop it.
            is_fatal = is_single or isinstance(error, UnsafePathError)
            if is_fatal or error is rows.raised or options.policy.malformed == "raise":
                raise
            rows.malformed(error.message, line=error.line)
    return rows


@contextmanager
def _other_format_named(format: str, folder: Folder, name: str) -> Iterator[None]:
    """Extend an AnnotationError by the format that its file or the folder seems to have, if it is a known one."""
    try:
        yield
    except AnnotationError as error:
        hint = _other_format(format, folder, name, error)
        if hint is None:
            raise
        settings: dict[str, Any] = {
            "path": error.path,
            "line": error.line,
            "remedy": error.remedy,
            "settings": error.settings,
        }
        raise type(error)(hint, **settings) from None


def other_format(start: bytes, *, except_for: str = "") -> str | None:
    """Return the known format that a file begins with, and what to do about it, or None.

    Args:
        start: First bytes of the file.
        except_for: Format whose own remedy does not help.
    """
    for pattern, remedy in _OTHER_FORMATS.items():
        # The patterns match near the start of a file; a long preamble only costs the hint.
        if f"'{except_for}'" not in remedy and re.search(pattern, start[:4096]):
            return remedy
    return None


def _other_format(format: str, folder: Folder, name: str, error: AnnotationError) -> str | None:
    """Return a message that names the other format of the file or folder that an error is about, or None."""
    path = Path(error.path or "")
    if path.is_file():
        start = b""
        with suppress(OSError), path.open("rb") as file:
            start = file.read(4096)
        remedy = other_format(start, except_for=format)
        return None if remedy is None else f"this is {remedy} (as {format!r}: {error.problem})"
    # The path is the problem, whatever else is in the folder.
    if isinstance(error, UnsafePathError):
        return None
    # Without the expected file, the folder may have another format.
    parents = (".", name, posixpath.relpath(path, folder.root))
    entries: list[str] = []
    # The expected file may be missing in the root, in the set, or in a folder that the set names.
    for parent in dict.fromkeys(map(posixpath.normpath, parents)):
        with suppress(AnnotationError):  # the error being explained is more useful
            entries += [*folder.files(parent), *folder.folders(parent)]
    for name_pattern, remedy in _OTHER_FOLDERS.items():
        matches = fnmatch.filter(entries, name_pattern)
        if matches and f"'{format}'" not in remedy:
            return f"{error.problem}; {matches[0]!r} is there: {remedy}"
    return None


def _plain(value: Any) -> Any:
    """Return an option's value as JSON data, mappings as lists of pairs because their order counts."""
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
