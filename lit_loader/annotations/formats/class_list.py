"""Lists of images with their class, or classes, on every line, and tables with a column of 0 and 1 for each class."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS, Folder, is_image_name
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import MAX_NAME_CHARS, Rows
from lit_loader.annotations.formats.text_file import check_separator, read_lines, read_rows
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["ClassListReader", "read_class_names"]

_ENDINGS: Final = "|".join(re.escape(ending) for ending in IMAGE_EXTENSIONS)
_PATH: Final = re.compile(rf"(\S.*?(?:{_ENDINGS}))(?:\s+(.*))?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-+]?\d*\.?\d+")
_ONE_HOT: Final = {"0": False, "1": True, "0.0": False, "1.0": True}
_LOOKED_AT: Final = 100  # lines that decide whether there is a header, and whether cells are 0 and 1


class _Line(NamedTuple):
    number: int
    path: str
    cells: list[str]


class _Columns(NamedTuple):
    """What the columns of a table hold, counted from the first one after the path.

    Attributes:
        has_header: Whether the first line is a header.
        names: What the header calls them, or their numbers; empty if the file is a list, whose cells are all labels.
        used: Those that are labels.
        is_one_hot: Whether they are classes, and hold 0 and 1.
    """

    has_header: bool
    names: Sequence[str] = ()
    used: Sequence[int] = ()
    is_one_hot: bool = False


@dataclass(frozen=True, kw_only=True)
class ClassListReader(Reader):
    """Reads a list such as mmpretrain's ``ann.txt``: ``train/a.jpg cat``, or ``train/a.jpg cat outdoor``.

    A line is a path, then any number of labels. Each label becomes one object of the image, whose box is the whole
    image; a line without a label is an image without objects, and reported. Lines with the same path are one image's.
    A path without an image's ending means the first file that has one. Empty lines are skipped.

    A table has a header and several columns besides the path. If every cell is 0 or 1, the header names the classes
    (``one_hot``). Of other tables ``label_columns`` names the columns that are labels; without it they are refused, and
    so are lists in which some columns are numbers and others are not.

    Args:
        image_dir: The folder that paths are relative to, relative to the root.
        separator: The character between path and labels, and between labels; fields may be quoted as in CSV. None for
            blanks, where a path may hold blanks if it has an image's ending.
        header: Whether the first line is a header.
        one_hot: Whether the first line names classes, and each cell below is 1 if the image has the class and 0 if
            not. None to recognise such a table, and to report that: the first line is a header, or its path has no
            image's ending; it names two columns or more; all cells below are 0 or 1; labels are not ``numbered``.
        label_columns: Columns that are labels, or classes of a one-hot table, by their names in the header or by their
            numbers, where the path is 0. Others are counted in the report.
        numbered: Whether labels are numbers, from 0, of the lines of ``class_file``, else of ``class_names``. A number
            without a class is an unknown class.
        class_file: A file with a class on each line, relative to the root: the classes in the order of their ids,
            unless ``class_names`` give another one.
    """

    format: ClassVar[str] = "class_list"
    description: ClassVar[str] = "text or CSV, an image and its label or labels a line; NAME: the file"
    version: ClassVar[int] = 2

    image_dir: str = "."
    separator: str | None = None
    header: bool = False
    one_hot: bool | None = None
    label_columns: Sequence[str | int] | None = None
    numbered: bool = False
    class_file: str | None = None

    def __post_init__(self) -> None:
        columns = self.label_columns
        check_separator(self.separator)
        if self.numbered and self.one_hot:
            raise ValueError(
                "numbered=True and one_hot=True exclude each other: cells are numbers, or 0 and 1"
            )
        if columns is not None:
            if not columns or len(set(columns)) != len(columns) or 0 in columns:
                raise ValueError(f"label_columns={columns} must be different columns, one or more, and not 0")
            if any(isinstance(column, str) for column in columns) and not (self.header or self.one_hot):
                raise ValueError(f"label_columns={columns} are names, which need header=True or one_hot=True")

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the list and the file of classes."""
        return Inputs(files=[name] if self.class_file is None else [name, self.class_file], units=[name])

    def read(self, rows: Rows, unit: str) -> None:
        """Add the lines of a list."""
        listed = None if self.class_file is None else read_class_names(rows, self.class_file)
        meant = None
        if self.numbered:
            if not (names := listed or rows.given_classes):
                raise ValueError("numbered=True needs class_file or class_names: what the numbers mean")
            meant = {str(number): name for number, name in enumerate(names)}
        lines = self._read_lines(rows, unit)
        first = list(islice(lines, _LOOKED_AT))
        columns = self._columns(rows, first)
        classes = [columns.names[i] for i in columns.used] if columns.is_one_hot else []
        rows.declare(class_names=listed or classes)
        count = 0
        for line in chain(first[1:] if columns.has_header else first, lines):
            count += 1
            if not line.path:
                rows.malformed("the line has no path", line=line.number)
            elif (labels := self._labels(rows, columns, line)) is not None:
                self._add(rows, line, labels, meant)
        for i, name in enumerate(columns.names if count else ()):
            if i not in columns.used:
                rows.not_read(f"column {shorten(name)!r}", count)

    def _read_lines(self, rows: Rows, name: str) -> Iterator[_Line]:
        if self.separator is not None:
            for number, (path, *cells) in read_rows(rows.root, name, separator=self.separator):
                yield _Line(number, path, cells)
            return
        for number, text in self.lines(rows, name):
            if match := _PATH.fullmatch(text.strip()):
                yield _Line(number, match[1], (match[2] or "").split())
            elif text.strip():
                path, *cells = text.split()
                yield _Line(number, path, cells)

    def _columns(self, rows: Rows, first: Sequence[_Line]) -> _Columns:
        """Return what the columns hold.

        Raises:
            AnnotationError: If the file is a table, and nothing says which columns are labels.
        """

        def refuse(message: str, **settings: Any) -> NoReturn:
            raise AnnotationError(
                message, path=rows.root / rows.file, line=first[0].number, settings=settings
            )

        if not first:
            return _Columns(False)
        (_, path, names), below = first[0], first[1:]
        apart = re.search(r"[,;\t]", path)
        if (
            self.separator is None
            and apart
            and not is_image_name(path)
            and (not names or path.endswith(apart[0]))
        ):
            refuse(f"{shorten(path)!r} is not an image's path", separator=apart[0])
        every = range(len(names))
        listed = shorten(", ".join(map(repr, names)))
        is_table = len(names) > 1 and all(len(line.cells) == len(names) for line in below)
        may_be_one_hot = self.one_hot is None and not self.numbered and bool(below)
        has_header = self.header or self.one_hot is True
        if not has_header and self.label_columns is None:
            if not is_table or not below:
                return _Columns(False)
            if may_be_one_hot and _are_binary(first, every):
                message = "all cells are 0 or 1, and no header names classes; add one if columns are classes"
                refuse(message, numbered=True, one_hot=False)
            binary = may_be_one_hot and _are_binary(below, every)
            named = self.separator is not None and all(is_image_name(line.path) for line in below)
            if is_image_name(path) or not (binary or named):
                numeric = [all(_NUMBER.fullmatch(line.cells[i]) for line in first) for i in every]
                if any(numeric) and not all(numeric):
                    refuse("only some columns are numbers; pass label_columns with those that are labels")
                return _Columns(False)
            has_header = True
        used: Sequence[int] = every
        if self.label_columns is not None:
            for column in self.label_columns:
                known = names.count(column) == 1 if isinstance(column, str) else 0 < column <= len(names)
                if not known:
                    refuse(f"label_columns: {column!r} is not one of the {len(names)} columns {listed}")
            used = [names.index(each) if isinstance(each, str) else each - 1 for each in self.label_columns]
        elif not self.one_hot and (len(names) < 2 or (self.separator is None and not is_table)):
            return _Columns(has_header)
        is_one_hot = self.one_hot is True
        if has_header and may_be_one_hot and len(used) > 1 and _are_binary(below, used):
            is_one_hot = True
            message = f"columns {listed} are classes that a line has (1) or not (0); one_hot=True settles it"
            rows.problem("one_hot", "recognised", message, line=first[0].number)
        if not is_one_hot and self.label_columns is None:
            message = (
                f"the table has the columns {listed} besides the path, and label_columns must name the labels"
            )
            refuse(message, header=True)
        classes = [names[i] for i in used]
        if is_one_hot and (len(set(classes)) != len(classes) or not all(classes)):
            refuse(f"the header must name different classes, none of them empty; it has {listed}")
        return _Columns(has_header, names if has_header else [str(i + 1) for i in every], used, is_one_hot)

    def _labels(self, rows: Rows, columns: _Columns, line: _Line) -> list[str] | None:
        """Return the labels of a line, or None if it is malformed."""
        cells, names = line.cells, columns.names
        if not names:
            return cells
        if len(cells) != len(names):
            rows.malformed(f"{len(cells) + 1} fields; the first row has {len(names) + 1}", line=line.number)
            return None
        if not columns.is_one_hot:
            return [cells[i] for i in columns.used]
        for i in columns.used:
            if cells[i] not in _ONE_HOT:
                what = f"{shorten(repr(cells[i]))} of the class {shorten(repr(names[i]))} is not 0 or 1"
                rows.malformed(f"cell {what}; for another kind of table pass label_columns", line=line.number)
                return None
        return [names[i] for i in columns.used if _ONE_HOT[cells[i]]]

    def _add(self, rows: Rows, line: _Line, labels: Sequence[str], meant: Mapping[str, str] | None) -> None:
        """Add an image and its labels, which are keys of ``meant`` if that is given."""
        image = rows.image(line.path, folder=self.image_dir, line=line.number)
        labels = [label for label in labels if label]
        if not labels:
            rows.problem("no_label", "keep", f"{shorten(line.path)!r} has no label", line=line.number)
        for label in dict.fromkeys(labels):
            class_name = label if meant is None else meant.get(label.lstrip("0") or "0")
            if class_name is not None:
                rows.object(image, class_name=class_name, box=None, line=line.number)
                continue
            message = (
                f"label {shorten(label)!r} is not one of the {len(meant or ())} numbers, from 0, of classes"
            )
            rows.problem("unknown_class", rows.policy.unknown_class, message, line=line.number)


def read_class_names(rows: Rows, name: str) -> list[str]:
    """Return the names of a file with a class on each line; empty lines are skipped.

    Raises:
        AnnotationError: If it has no name, or one twice or of too many characters; names file and line.
    """
    names: dict[str, int] = {}
    for line, text in read_lines(rows.root, name):
        class_name = text.strip()
        if class_name in names or len(class_name) > MAX_NAME_CHARS:
            rule = f"is listed before, too, or has over {MAX_NAME_CHARS} characters"
            raise AnnotationError(f"{shorten(class_name)!r} {rule}", path=rows.root / name, line=line)
        if class_name:
            names[class_name] = line
    if not names:
        raise AnnotationError("the file names no class; one is on each line", path=rows.root / name)
    return list(names)


def _are_binary(lines: Sequence[_Line], columns: Iterable[int]) -> bool:
    """Whether cells of these columns are 0 or 1."""
    places = list(columns)
    return all(line.cells[i] in _ONE_HOT for line in lines for i in places if i < len(line.cells))
