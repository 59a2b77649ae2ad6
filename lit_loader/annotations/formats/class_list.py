"""Lists of images with one or more classes per line, and tables with one column of 0 and 1 per class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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

_EXTENSIONS: Final = "|".join(re.escape(extension) for extension in IMAGE_EXTENSIONS)
# Non-greedy up to the first image extension, so that a path may contain blanks.
_PATH: Final = re.compile(rf"(\S.*?(?:{_EXTENSIONS}))(?:\s+(.*))?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-+]?\d*\.?\d+")
# pandas writes integer columns with missing values as floats.
_ONE_HOT: Final = {"0": False, "1": True, "0.0": False, "1.0": True}
_NUM_PROBED_LINES: Final = 100  # lines that decide on the kind of file


class _Line(NamedTuple):
    number: int
    path: str
    cells: list[str]


class _Columns(NamedTuple):
    """Columns of a table after the path.

    Attributes:
        has_header: True if the first line is a header.
        names: Names in the header, or numbers; empty if the file is a list, in which every cell is a label.
        label_columns: Positions of the columns with labels.
        is_one_hot: True if these columns are classes with cells 0 and 1.
    """

    has_header: bool
    names: Sequence[str] = ()
    label_columns: Sequence[int] = ()
    is_one_hot: bool = False


@dataclass(frozen=True, kw_only=True)
class ClassListReader(Reader):
    """Reader of a list such as mmpretrain's ``ann.txt``: ``train/a.jpg cat``, or ``train/a.jpg cat outdoor``.

    A line is a path, followed by any number of labels. Each label becomes one object of the image, whose box is the
    whole image. A line without a label is an image without objects, and is reported. Lines with the same path belong to
    one image. A path without an image extension refers to the first existing file with one. Empty lines are skipped.

    A table has a header and several columns after the path. If every cell is 0 or 1, the header names the classes
    (``one_hot``). For other tables ``label_columns`` selects the columns with labels; without it they are refused, as
    are lists in which only some columns are numbers.

    Args:
        image_dir: Folder that paths are relative to, itself relative to the root.
        separator: Character between path and labels, and between labels; fields may be quoted as in CSV. None for
            blanks; a path may then contain blanks if it has an image extension.
        header: Whether the first line is a header.
        one_hot: Whether the first line names classes, and each cell is 1 if the image has the class, else 0. None to
            detect such a table, and report it: the first line is a header, or its path has no image extension; it names
            at least two columns; all cells below are 0 or 1; labels are not ``numbered``.
        label_columns: Columns with labels, or classes of a one-hot table, by name in the header or by number (the path
            is 0). Other columns are counted in the report.
        numbered: Whether labels are numbers, from 0, of the lines of ``class_file``, or without it of ``class_names``.
            A number without a class is an unknown class.
        class_file: File with one class per line, relative to the root: the classes in the order of their ids, unless
            ``class_names`` sets another order.
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
            raise ValueError("numbered=True and one_hot=True exclude each other: cells are either numbers or 0 and 1")
        if columns is not None:
            if not columns or len(set(columns)) != len(columns) or 0 in columns:
                raise ValueError(f"label_columns={columns} must be at least one column, all different, none of them 0")
            if any(isinstance(column, str) for column in columns) and not (self.header or self.one_hot):
                raise ValueError(f"label_columns={columns} has names, which require header=True or one_hot=True")

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the list and the class file."""
        return Inputs(files=[name] if self.class_file is None else [name, self.class_file], units=[name])

    def read(self, rows: Rows, unit: str) -> None:
        """Add the lines of a list."""
        # Read first: a missing class file must not be hidden by an error in the list.
        file_classes = None if self.class_file is None else read_class_names(rows, self.class_file)
        class_by_number = None
        if self.numbered:
            names = file_classes or rows.given_classes
            if not names:
                raise ValueError("numbered=True requires class_file or class_names, which the numbers refer to")
            class_by_number = {str(number): name for number, name in enumerate(names)}
        lines = self._read_lines(rows, unit)
        # The file may be large and is read only once, so the first lines are kept and read again from memory.
        first_lines = list(islice(lines, _NUM_PROBED_LINES))
        columns = self._columns(rows, first_lines)
        one_hot_classes = [columns.names[i] for i in columns.label_columns] if columns.is_one_hot else []
        rows.declare(class_names=file_classes or one_hot_classes)
        count = 0
        for line in chain(first_lines[1:] if columns.has_header else first_lines, lines):
            count += 1
            if not line.path:
                rows.malformed("the line has no path", line=line.number)
            elif (labels := self._labels(rows, columns, line)) is not None:
                self._add(rows, line, labels, class_by_number)
        for i, name in enumerate(columns.names if count else ()):
            if i not in columns.label_columns:
                rows.not_read(f"column {shorten(name)!r}", count)

    def _read_lines(self, rows: Rows, name: str) -> Iterator[_Line]:
        if self.separator is not None:
            for number, (path, *cells) in read_rows(rows.root, name, separator=self.separator):
                yield _Line(number, path, cells)
            return
        for number, text in self.lines(rows, name):
            if match := _PATH.fullmatch(text.strip()):
                yield _Line(number, match[1], (match[2] or "").split())
            # Without an extension the path ends at the first blank.
            elif text.strip():
                path, *cells = text.split()
                yield _Line(number, path, cells)

    def _columns(self, rows: Rows, first_lines: Sequence[_Line]) -> _Columns:
        """Decide from the first lines whether the file is a list or a table, and which columns have labels.

        Raises:
            AnnotationError: If the file is a table, and neither its cells nor an option tell which columns are labels.
        """
        if not first_lines:
            return _Columns(False)
        names = first_lines[0].cells
        body = first_lines[1:]
        # The usual mistake: a CSV file read with the default separator.
        path = first_lines[0].path
        separator = re.search(r"[,;\t]", path) if self.separator is None and not is_image_name(path) else None
        if separator and (not names or path.endswith(separator[0])):
            _refuse(rows, first_lines[0], f"{shorten(path)!r} is not an image path", separator=separator[0])
        # A list may have lines with different numbers of labels, a table may not.
        is_table = len(names) > 1 and all(len(line.cells) == len(names) for line in body)
        may_be_one_hot = self.one_hot is None and not self.numbered and bool(body)
        has_header = self.header or self.one_hot is True
        if not has_header and self.label_columns is None:
            if not is_table or not body or not self._looks_like_header(rows, first_lines, may_be_one_hot):
                return _Columns(False)
            has_header = True
        label_columns: Sequence[int] = range(len(names))
        if self.label_columns is not None:
            label_columns = self._selected_columns(rows, first_lines[0])
        elif not self.one_hot and (len(names) < 2 or (self.separator is None and not is_table)):
            return _Columns(has_header)
        is_one_hot = self.one_hot is True
        listed = shorten(", ".join(map(repr, names)))
        if has_header and may_be_one_hot and len(label_columns) > 1 and _are_binary(body, label_columns):
            # Reported, because labels called 0 and 1 would look the same.
            is_one_hot = True
            message = f"columns {listed} are read as classes with cells 0 and 1; pass one_hot=True to confirm it"
            rows.problem("one_hot", "recognised", message, line=first_lines[0].number)
        if not is_one_hot and self.label_columns is None:
            message = f"the table has the columns {listed} besides the path, and label_columns must name the labels"
            _refuse(rows, first_lines[0], message, header=True)
        classes = [names[i] for i in label_columns]
        if is_one_hot and (len(set(classes)) != len(classes) or not all(classes)):
            message = f"the header must name different classes, none of them empty; it has {listed}"
            _refuse(rows, first_lines[0], message)
        # Without a header columns are named by number in the report.
        column_names = names if has_header else [str(i + 1) for i in range(len(names))]
        return _Columns(has_header, column_names, label_columns, is_one_hot)

    def _looks_like_header(self, rows: Rows, first_lines: Sequence[_Line], may_be_one_hot: bool) -> bool:
        """Return True if the first line of a table is a header; refuse tables that may be read in several ways."""
        columns = range(len(first_lines[0].cells))
        body = first_lines[1:]
        if may_be_one_hot and _are_binary(first_lines, columns):
            message = "all cells are 0 or 1, and no header names classes; add one if columns are classes"
            _refuse(rows, first_lines[0], message, numbered=True, one_hot=False)
        has_binary_body = may_be_one_hot and _are_binary(body, columns)
        # With blanks as separator, a line of words looks like a header.
        has_image_body = self.separator is not None and all(is_image_name(line.path) for line in body)
        if not is_image_name(first_lines[0].path) and (has_binary_body or has_image_body):
            return True
        is_numeric = [all(_NUMBER.fullmatch(line.cells[i]) for line in first_lines) for i in columns]
        # Numbers next to names are most likely scores or boxes, not labels.
        if any(is_numeric) and not all(is_numeric):
            message = "only some columns are numbers; pass label_columns with those that are labels"
            _refuse(rows, first_lines[0], message)
        return False

    def _selected_columns(self, rows: Rows, first_line: _Line) -> list[int]:
        """Return the positions of ``label_columns``, from the first column after the path."""
        names = first_line.cells
        listed = shorten(", ".join(map(repr, names)))
        positions = []
        for column in self.label_columns or ():
            exists = names.count(column) == 1 if isinstance(column, str) else 0 < column <= len(names)
            if not exists:
                problem = f"label_columns: {column!r} is not one of the {len(names)} columns {listed}"
                _refuse(rows, first_line, problem)
            positions.append(names.index(column) if isinstance(column, str) else column - 1)
        return positions

    def _labels(self, rows: Rows, columns: _Columns, line: _Line) -> list[str] | None:
        """Return the labels of a line, or None if it is malformed."""
        cells = line.cells
        names = columns.names
        if not names:
            return cells
        if len(cells) != len(names):
            rows.malformed(f"{len(cells) + 1} fields; the first row has {len(names) + 1}", line=line.number)
            return None
        if not columns.is_one_hot:
            return [cells[i] for i in columns.label_columns]
        for i in columns.label_columns:
            if cells[i] not in _ONE_HOT:
                cell = f"cell {shorten(repr(cells[i]))} of the class {shorten(repr(names[i]))}"
                rows.malformed(f"{cell} is not 0 or 1; for another table pass label_columns", line=line.number)
                return None
        return [names[i] for i in columns.label_columns if _ONE_HOT[cells[i]]]

    def _add(self, rows: Rows, line: _Line, labels: Sequence[str], class_by_number: Mapping[str, str] | None) -> None:
        """Add an image and its labels, which are class names or, with ``class_by_number``, numbers."""
        image = rows.image(line.path, folder=self.image_dir, line=line.number)
        labels = [label for label in labels if label]
        if not labels:
            rows.problem("no_label", "keep", f"{shorten(line.path)!r} has no label", line=line.number)
        # A repeated label is one object.
        for label in dict.fromkeys(labels):
            # Leading zeros are allowed, but "-1", "1.0" and other digits than 0 to 9 are not numbers of a class.
            class_name = label if class_by_number is None else class_by_number.get(label.lstrip("0") or "0")
            if class_name is not None:
                rows.object(image, class_name=class_name, box=None, line=line.number)
                continue
            message = f"label {shorten(label)!r} is not one of the {len(class_by_number or ())} class numbers, from 0"
            rows.problem("unknown_class", rows.policy.unknown_class, message, line=line.number)


def read_class_names(rows: Rows, name: str) -> list[str]:
    """Return the class names in a file with one class per line; empty lines are skipped.

    Raises:
        AnnotationError: If the file has no names, or a duplicate or too long name; names file and line.
    """
    names: dict[str, None] = {}
    for line, text in read_lines(rows.root, name):
        class_name = text.strip()
        # Checked here, where the line is known.
        if class_name in names or len(class_name) > MAX_NAME_CHARS:
            problem = f"{shorten(class_name)!r} is a duplicate, or has more than {MAX_NAME_CHARS} characters"
            raise AnnotationError(problem, path=rows.root / name, line=line)
        if class_name:
            names[class_name] = None
    if not names:
        raise AnnotationError("the file has no class names; expected one per line", path=rows.root / name)
    return list(names)


def _are_binary(lines: Sequence[_Line], columns: Sequence[int]) -> bool:
    """Return True if all cells of some columns are 0 or 1."""
    return all(line.cells[i] in _ONE_HOT for line in lines for i in columns if i < len(line.cells))


def _refuse(rows: Rows, line: _Line, message: str, **settings: Any) -> NoReturn:
    raise AnnotationError(message, path=rows.root / rows.file, line=line.number, settings=settings)
