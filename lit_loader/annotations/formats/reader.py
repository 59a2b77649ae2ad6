"""Readers: from the files of one format to an `AnnotationTable`, by one way for all formats.

NOTE [One read]
    inputs    `Reader.inputs` names the files of a set, with nothing opened.
    cache     A table that was made of the same files with the same options is opened instead of reading them.
    rows      `Reader.read` adds what each file holds to `Rows`; many files are read by several processes.
    table     `build_table` looks the images up, applies the `ReadPolicy` and fills the columns.

NOTE [When a cached table is stale]
    A table is kept under a key of its format, its options, and name, size and time of each annotation file. Images are
    not part of the key, so pictures that are written below the root change nothing, unless the images of a folder are
    what is read: then their names are part of it. Images whose size was read from
    their header, those that were missing, and those that EXIF turns away from the stated size decide the table's
    content: it keeps a stamp of each, and is made anew if one of them has changed. A table from which the policy has
    dropped images is not kept, because they may come. An image that agreed with its stated size when the table was made
    has no stamp, as a look at each would cost every start of a run: data sets refuse one that is turned later.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from lit_loader.annotations.cache import (
    cache_folder,
    cache_key,
    keep,
    load_last,
    load_unchanged,
    was_read,
)
from lit_loader.annotations.formats.folder import Folder, file_stamp
from lit_loader.annotations.formats.parallel import iter_chunks, status_spinner
from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.rules import build_table
from lit_loader.annotations.formats.text_file import read_lines
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError, UnsafePathError

__all__ = ["Inputs", "ReadOptions", "Reader"]

_KITTI: Final = "KITTI labels: convert them to COCO or YOLO"
_DOTA: Final = "DOTA labels of rotated boxes: convert them to YOLO-OBB, and read that with task=segment"
_CREATEML: Final = "CreateML JSON: export it as COCO or Pascal VOC"
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
    rb'"securityToken"\s*:|"asset"\s*:\s*\{': "VoTT JSON: export it from VoTT as CSV, which keypoints_csv reads",
    rb'"joints(_vis)?"\s*:': _MPII,
    rb'"(images|annotations|categories)"\s*:\s*\[': "COCO JSON: read it as 'coco'",
    rb"\A(ImageID,(Source|Subset)|MaskPath,ImageID|LabelName,)": "Open Images CSV: convert it to COCO",
    rb'\A"?image"?,"?xmin"?,"?ymin': "VoTT CSV: read it as 'keypoints_csv'",
    rb"\ANAME_ID,X,": "VGGFace2 CSV: keypoints_csv reads it with box_columns=X,Y,W,H and box_format=xywh",
    rb"\ANAME_ID,P1X,": "VGGFace2 CSV: keypoints_csv reads it with schema=face_5",
    rb"\Ascorer,": _DEEPLABCUT,
    rb"\A\x89HDF\r\n": "an HDF5 file: of DeepLabCut, read the CSV file with the same name",
    rb"\AMATLAB 5\.0 MAT-file": _MPII,
    rb"\A\s*LM3?=\d": _TPS,
    rb"\A(imagesource|gsd):|\A(-?[\d.]+ ){8}[A-Za-z][\w-]* [0-2]\s": _DOTA,
    rb"\A[A-Za-z_]+ -?[\d.]+ -?\d (-?[\d.]+ ){11}-?[\d.]+( -?[\d.]+)?\s": _KITTI,
    rb"\A(\xef\xbb\xbf)?(-?\d+,\s?){8}\S|\A(\d+,? ){4}\"": _ICDAR,
}
"""Formats that a file may be taken for another one's: how they begin, and what to do about them."""

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
"""Names in the folders of other formats, and the remedies."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What every reader takes, whatever its format.

    Args:
        class_names: Classes in the order of their ids, or None for those that the files list, else for those that
            occur, sorted.
        split: The table's split, or None for the one that a file names.
        policy: What to do about each kind of problem.
        cache_dir: Where tables are cached, or None for the user's cache folder.
        use_cache: Whether to open the table from the cache and to store it there.
        trust_cache: Whether to open the table that was read last with these options, with no look at the files. For
            a process that knows that another one on this machine has just read them. They are read as always if
            that table is not in the cache.
        num_workers: Processes that read, or None to decide by the number of files; one file is read in this process.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        TypeError: If ``class_names`` is one string.
        ValueError: If ``class_names`` are empty or not different, or ``num_workers`` is negative.
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
            raise TypeError(f"class_names={self.class_names!r} must be a sequence of names, not one string")
        if self.class_names is not None:
            names = tuple(self.class_names)
            if not names or len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
                raise ValueError(f"class_names={names} must be different names, at least one, none empty")
            object.__setattr__(self, "class_names", names)
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(f"num_workers={self.num_workers} must be None or >= 0")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The files of a set.

    Attributes:
        files: Paths relative to the root; with name, size and time they make the cache's key.
        units: What `Reader.read` gets one by one; by default the files.
        unit_files: Further files, each of which is read by one unit, with `Rows.read_bytes`.
        split: The split that the name means, if it means one.
        listed: Images that a folder's listing adds to the set: part of the key by their names alone.
    """

    files: Sequence[str]
    units: Sequence[Any] | None = None
    unit_files: Sequence[str] = ()
    split: str | None = None
    listed: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads one format. The fields of a subclass, a frozen dataclass with keywords only, are the format's options.

    A subclass has `format`, `description` and `read`, and is made known by `register_format` or by an entry point of
    the group ``lit_loader.formats``. Then `read_annotations`, the command line and Hydra have it and its options.

    Attributes:
        format: The format's name.
        description: One line, for ``--help``; it explains NAME.
        version: Raised when the same files give another table, so that cached ones are left aside.
    """

    format: ClassVar[str]
    description: ClassVar[str]
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        schema = getattr(self, "schema", None)
        if schema is not None and not getattr(self, "keypoints", True):
            raise ValueError(f"{schema=} names points, and keypoints=False reads none; drop one")
        self.given_keypoints()

    @abstractmethod
    def read(self, rows: Rows, unit: Any) -> None:
        """Add what one file holds.

        Args:
            rows: Takes images, objects, problems and declared names. ``rows.file`` is the file if the unit is one.
            unit: A path relative to the root, or what `inputs` made.

        Raises:
            AnnotationError: If the file is not of this format; with many files the policy decides on it.
        """

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the files of a set; by default the one file of that name."""
        return Inputs(files=[name])

    def given_keypoints(self) -> KeypointSchema | None:
        """Return the points of an object if an option names them, else None."""
        schema = getattr(self, "schema", None)
        return None if schema is None else keypoint_schema(schema)

    def find_line(self, root: Path, file: str, index: int) -> int | None:
        """Return the line of an object by its position in a file, or None; asked only for what is reported."""
        return None

    def lines(self, rows: Rows, name: str) -> Iterator[tuple[int, str]]:
        """Yield the lines of a text file with their numbers, counted from 1.

        Raises:
            AnnotationError: If it is not text in UTF-8, or has lines of more than 256 KiB.
        """
        return read_lines(rows.root, name)

    # -- for the caller -------------------------------------------------------------------------------------

    def read_table(
        self, root: Path | str | Folder, name: str, options: ReadOptions | None = None
    ) -> AnnotationTable:
        """Return the table of a set, from the cache if it is there.

        Args:
            root: The data set's folder; one `Folder` for several sets lists its folders once.
            name: What to read, relative to the root: a file, a folder or a split, as the format takes it.
            options: What every format takes.

        Raises:
            AnnotationError: If the annotations cannot be used; names file and line.
            UnsafePathError: If a path in a file leads out of the root.
        """
        options = ReadOptions() if options is None else options
        folder = root if isinstance(root, Folder) else Folder(root)
        if not options.use_cache:
            return self._build(folder, self._checked_inputs(folder, name), options)[0]
        cache = cache_folder(options.cache_dir)
        make_key = partial(cache_key, reader=self.format, version=self.version, root=folder.root)
        settings = self._settings(name, options)
        request = make_key(settings=settings)
        last = load_last(folder=cache, request=request, root=folder.root) if options.trust_cache else None
        if last is not None:
            return last
        inputs = self._checked_inputs(folder, name)
        settings["listed"] = inputs.listed
        files, unit_files = inputs.files, inputs.unit_files
        if inputs.units is None:
            files, unit_files = (), inputs.files
        make_key = partial(make_key, settings=settings, files=[*files, *unit_files])
        stamps = [number for file in files for number in folder.stamp(file)]
        was_known = was_read(folder=cache, request=request)
        if was_known:
            stamps += [number for file in unit_files for number in folder.stamp(file)]
            key = make_key(stamps=stamps)
            kept = load_unchanged(folder=cache, key=key, request=request, root=folder.root)
            if kept is not None:
                return kept
        # A file that there is nothing to compare with is stamped by the process that reads it.
        table, rows = self._build(folder, inputs, options, stamp=not was_known)
        stamps_read = [] if was_known else rows.stamps_of(unit_files)
        if stamps_read is None or not _has_all_images(table):
            return table
        key = make_key(stamps=stamps + stamps_read)
        return keep(table, folder=cache, key=key, request=request)

    def _checked_inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the files of a set; an error says if the folder is of another format."""
        with _other_format_named(self.format, folder, name):
            return self.inputs(folder, name)

    def _settings(self, name: str, options: ReadOptions) -> dict[str, Any]:
        """Return all that changes the table, as plain values."""
        schema = self.given_keypoints()
        return {
            "name": name,
            "options": {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "schema"},
            "schema": None if schema is None else asdict(schema),
            "class_names": options.class_names,
            "split": options.split,
            "policy": asdict(options.policy),
        }

    def _build(
        self, folder: Folder, inputs: Inputs, options: ReadOptions, *, stamp: bool = False
    ) -> tuple[AnnotationTable, Rows]:
        units = inputs.files if inputs.units is None else inputs.units
        names = [*inputs.files[:3], *inputs.unit_files[:3]]
        with (
            status_spinner(f"Reading {shorten(', '.join(names[:3]))}", progress=options.progress),
            _other_format_named(self.format, folder),
        ):
            parts = iter_chunks(
                partial(
                    _read_chunk,
                    reader=self,
                    root=folder.root,
                    options=options,
                    is_one=len(units) == 1,
                    stamp=stamp,
                ),
                units,
                num_workers=options.num_workers if len(units) > 1 else 0,
                progress=options.progress,
                description="Reading annotations",
            )
            rows = next(parts, None) or Rows(folder.root, options.policy, options.class_names)
            for part in parts:
                rows.join(part)
            table = build_table(
                rows,
                folder,
                class_names=options.class_names,
                keypoints=self.given_keypoints(),
                split=inputs.split if options.split is None else options.split,
                num_workers=options.num_workers,
                progress=options.progress,
            )
        return table, rows


def _read_chunk(
    units: Sequence[Any], *, reader: Reader, root: Path, options: ReadOptions, is_one: bool, stamp: bool
) -> Rows:
    rows = Rows(root, options.policy, options.class_names)
    if stamp:
        rows.start_stamps()
    rows.find_line = partial(reader.find_line, root)
    for unit in units:
        rows.file = unit if isinstance(unit, str) else ""
        if stamp and rows.file:
            with suppress(OSError, ValueError):  # to read it tells the reason
                rows.put_stamp(*file_stamp(f"{root}/{unit}"))
        try:
            reader.read(rows, unit)
        except AnnotationError as error:
            decided = error is rows.raised or options.policy.malformed == "raise"
            if decided or is_one or isinstance(error, UnsafePathError):
                raise
            rows.malformed(error.message, line=error.line)
    return rows


def _has_all_images(table: AnnotationTable) -> bool:
    return not any(
        table.report.count(kind, "drop") for kind in ("missing_image", "turned_image", "unreadable_image")
    )


@contextmanager
def _other_format_named(format: str, folder: Folder, name: str = ".") -> Iterator[None]:
    """Add to an error the format of its file or of the folder, if that is a known other one."""
    try:
        yield
    except AnnotationError as error:
        path, start = Path(error.path or ""), b""
        if path.is_file():
            with suppress(OSError), path.open("rb") as file:
                start = file.read(4096)
        for pattern, found in _OTHER_FORMATS.items():
            if f"'{format}'" not in found and re.search(pattern, start):
                message = f"this is {found} (as {format!r}: {error.message})"
                raise type(error)(message, path=error.path, line=error.line) from None
        if not path.is_file() and not isinstance(error, UnsafePathError):
            for name_pattern, remedy in _OTHER_FOLDERS.items():
                names = (".", name, posixpath.relpath(path, folder.root))
                entry = next(iter(fnmatch.filter(_entries(folder, names), name_pattern)), None)
                if entry is not None and f"'{format}'" not in remedy:
                    message = f"{error.message}; {entry!r} is there: {remedy}"
                    raise type(error)(message, path=error.path, line=error.line) from None
        raise


def _entries(folder: Folder, parents: Iterable[str]) -> list[str]:
    """Return the names of files and folders in some folders, relative to the root."""
    entries: list[str] = []
    for parent in dict.fromkeys(map(posixpath.normpath, parents)):
        with suppress(AnnotationError):  # a folder that cannot be listed has its own error
            entries += [*folder.files(parent), *folder.folders(parent)]
    return entries


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(part)] for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
