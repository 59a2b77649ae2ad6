"""Checks of image files: missing, damaged, of another size than annotated, and copies of each other.

NOTE [Threads]
    Threads decode: the decoders release the GIL, pixels need not be sent, and each thread holds one image at a time.
    Headers are read by processes instead, because there the time is Python's.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from lit_loader.annotations.fingerprint import annotation_digest
from lit_loader.annotations.formats.image_sizes import read_image_sizes, read_shown_sizes
from lit_loader.annotations.formats.parallel import status_spinner
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.splitting import equal_files
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import ImageError
from lit_loader.foundation.host import count_cores
from lit_loader.images import ImageReading
from lit_loader.inspection.recorder import Recorder, TableSet

__all__ = ["ImageFiles", "check_copies", "check_depths", "check_images", "scan_images"]

_MAX_THREADS: Final = 32
_CHUNK_IMAGES: Final = 16
# Usually all images of a set have 16 bits or none has.
_MAX_INSPECTED: Final = 256
_MAX_REASONS: Final = 10_000

_Result: TypeAlias = tuple[int, int] | str
"""Width and height of an image, or the reason why it cannot be read."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """The image files of all sets.

    Attributes:
        paths: Path of each file, without repetition.
        rows: File of each image of each set, int64 ``(num_images,)``, by the name of the set.
        sizes: int64 ``(num_files, 2)``, width and height of the upright image, 0 if it cannot be read.
        reasons: Why a file cannot be read, by its position; of many damaged files only the first have a reason.
    """

    paths: Sequence[str]
    rows: Mapping[str, npt.NDArray[np.int64]]
    sizes: npt.NDArray[np.int64]
    reasons: Mapping[int, str]


def scan_images(
    tables: Mapping[str, AnnotationTable],
    *,
    reading: ImageReading,
    decode: bool,
    num_workers: int | None = None,
    progress: bool = True,
) -> ImageFiles:
    """Read every image file once.

    Args:
        tables: The table of each set.
        reading: Settings that training reads images with.
        decode: True to decode all pixels, False to read headers only.
        num_workers: Threads that decode, by default one for each available CPU, or processes that read headers.
        progress: Whether to draw a progress bar on a terminal.
    """
    numbers: dict[str, int] = {}
    rows = {
        name: np.fromiter(
            (numbers.setdefault(f"{table.root}/{path}", len(numbers)) for path in table.image_paths),
            dtype=np.int64,
            count=table.num_images,
        )
        for name, table in tables.items()
    }
    paths = list(numbers)
    sizes = np.zeros((len(paths), 2), dtype=np.int64)
    reasons: dict[int, str] = {}
    with warnings.catch_warnings():
        # Pillow warns about broken EXIF in images that decode well.
        warnings.simplefilter("ignore")
        if decode:
            results: Iterator[_Result] = _decode_all(paths, reading, num_threads=num_workers, progress=progress)
        else:
            results = _read_headers(paths, reading, num_workers=num_workers, progress=progress)
        for number, result in enumerate(results):
            if not isinstance(result, str):
                sizes[number] = result
            elif len(reasons) < _MAX_REASONS:
                reasons[number] = result
    return ImageFiles(paths=paths, rows=rows, sizes=sizes, reasons=reasons)


def check_images(recorder: Recorder, source: TableSet, files: ImageFiles) -> None:
    """Add missing and damaged images, and images of another size than annotated.

    Args:
        recorder: Receives the findings.
        source: The set.
        files: The scanned files.
    """
    table = source.table
    numbers = files.rows[source.name]
    measured = files.sizes[numbers]
    bad_rows = np.flatnonzero(measured[:, 0] == 0)
    exists = np.array([_exists(Path(files.paths[number])) for number in numbers[bad_rows].tolist()], dtype=np.bool_)

    def missing(row: int) -> str:
        return f"{shorten(table.image_paths[row])!r} does not exist"

    def unreadable(row: int) -> str:
        reason = files.reasons.get(int(numbers[row]), "it cannot be decoded")
        return f"{shorten(table.image_paths[row])!r}: {reason}"

    recorder.add_rows("missing_image", source, bad_rows[~exists], missing, unit="images")
    recorder.add_rows("unreadable_image", source, bad_rows[exists], unreadable, unit="images")
    _check_sizes(recorder, source, measured)


def check_depths(recorder: Recorder, source: TableSet, files: ImageFiles, *, reading: ImageReading) -> None:
    """Add a note if training reduces images with 16 bits to 8 bits; a sample of the files is inspected, as there."""
    numbers = files.rows[source.name]
    inspected = numbers[:: max(1, len(numbers) // _MAX_INSPECTED)].tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reading.warn_of_sixteen_bits([files.paths[number] for number in inspected])
    for warning in caught:
        recorder.add("sixteen_bit", source.name, shorten(str(warning.message)))


def _exists(path: Path) -> bool:
    """Return True if the file exists or access to it is refused, False also for paths that are too long."""
    try:
        path.stat()
    except PermissionError:
        # There may be a file, and its reason says that it cannot be read.
        return True
    except OSError:
        return False
    return True


def _check_sizes(recorder: Recorder, source: TableSet, measured: npt.NDArray[np.int64]) -> None:
    """Add images whose annotated size differs from the measured one, and those that EXIF turns onto their side."""
    table = source.table
    annotated = np.stack([table.widths, table.heights], axis=1).astype(np.int64)
    is_known = (annotated > 0).all(axis=1) & (measured > 0).all(axis=1)
    if table.regions is not None:
        # Such a row has the size of its part of the file.
        is_known &= ~table.regions.any(axis=1)
    wrong_rows = np.flatnonzero(is_known & (annotated != measured).any(axis=1))
    exchanged = (annotated[wrong_rows] == measured[wrong_rows, ::-1]).all(axis=1)
    turned = np.zeros(len(wrong_rows), dtype=np.bool_)
    paths = [table.image_paths[row] for row in wrong_rows[exchanged].tolist()]
    turned[exchanged] = read_shown_sizes(table.root, paths, num_workers=0, progress=False)[1]
    # The sides of a stored image that is 90 times longer than annotated are worse than one row of pixels more.
    scores = np.abs(np.log(measured[wrong_rows] / annotated[wrong_rows])).max(axis=1)

    def message(row: int) -> str:
        actual = " x ".join(map(str, measured[row].tolist()))
        expected = " x ".join(map(str, annotated[row].tolist()))
        return f"{shorten(table.image_paths[row])!r} has {actual} pixels, but the annotations say {expected}"

    for kind, selected in (("turned_image", turned), ("size_mismatch", ~turned)):
        recorder.add_rows(kind, source, wrong_rows[selected], message, scores=scores[selected], unit="images")


def check_copies(
    recorder: Recorder, sources: Sequence[TableSet], files: ImageFiles, *, reading: ImageReading, progress: bool
) -> None:
    """Add images in two sets, and byte-identical copies within and across sets.

    An image is reported once: for its first copy in an earlier set, else in its own set.

    Args:
        recorder: Receives the findings.
        sources: The sets.
        files: The scanned files.
        reading: Settings that training reads images with.
        progress: Whether to show a spinner on a terminal.
    """
    _check_shared(recorder, sources, files)
    with status_spinner("Comparing images", progress=progress):
        groups = equal_files(files.paths, reading.copy_traits)
    group_of_file = np.full(len(files.paths), -1, dtype=np.int64)
    for number, group in enumerate(groups):
        group_of_file[group] = number
    first_row_of_group: dict[int, tuple[TableSet, int]] = {}
    for source in sources:
        _check_copies_of_set(recorder, source, files, group_of_file, first_row_of_group)


def _check_shared(recorder: Recorder, sources: Sequence[TableSet], files: ImageFiles) -> None:
    """Add the images of each set that an earlier set also contains."""
    # Position of the first set of each file; no set is the number of sets.
    first_sets = np.full(len(files.paths), len(sources))
    for position, source in enumerate(sources):
        numbers = files.rows[source.name]
        first_sets[numbers] = np.minimum(first_sets[numbers], position)
        rows = np.flatnonzero(first_sets[numbers] < position)
        message = partial(_shared_message, source, [sources[number].name for number in first_sets[numbers].tolist()])
        recorder.add_rows("shared_image", source, rows, message, unit="images")


def _shared_message(source: TableSet, first_sets: Sequence[str], row: int) -> str:
    return f"{shorten(source.table.image_paths[row])!r} is in {first_sets[row]} and in {source.name}"


def _check_copies_of_set(
    recorder: Recorder,
    source: TableSet,
    files: ImageFiles,
    group_of_file: npt.NDArray[np.int64],
    first_rows: dict[int, tuple[TableSet, int]],
) -> None:
    """Add the copies in a set, of its own images or of images in earlier sets.

    Args:
        recorder: Receives the findings.
        source: The set.
        files: The scanned files.
        group_of_file: Number of the group of equal files, -1 for files without a copy, ``(num_files,)``.
        first_rows: Set and row of the first image of each group; the function adds the groups that are new.
    """
    rows_by_kind: dict[str, dict[int, tuple[TableSet, int]]] = {
        "duplicate_across_splits": {},
        "conflicting_duplicate": {},
        "duplicate_image": {},
    }
    own_rows: dict[int, tuple[int, bytes]] = {}
    numbers = files.rows[source.name]
    groups = group_of_file[numbers]
    for row in np.flatnonzero(groups >= 0).tolist():
        group = int(groups[row])
        origin, origin_row = first_rows.setdefault(group, (source, row))
        annotation = annotation_digest(source.table, row)
        own_row, own_annotation = own_rows.setdefault(group, (row, annotation))
        if own_row != row and numbers[own_row] != numbers[row]:
            is_equal = own_annotation == annotation
            rows_by_kind["duplicate_image" if is_equal else "conflicting_duplicate"][row] = (source, own_row)
        elif origin is not source and files.rows[origin.name][origin_row] != numbers[row]:
            rows_by_kind["duplicate_across_splits"][row] = (origin, origin_row)
    for kind, originals in rows_by_kind.items():
        message = partial(_copy_message, source, originals)
        recorder.add_rows(kind, source, list(originals), message, unit="images")


def _copy_message(source: TableSet, originals: Mapping[int, tuple[TableSet, int]], row: int) -> str:
    origin, origin_row = originals[row]
    path = origin.table.image_paths[origin_row]
    place = origin.table.place_of_image(origin_row)
    where = f" in {origin.name}" if origin is not source else ""
    text = f"{shorten(source.table.image_paths[row])!r} is a copy of {shorten(path)!r}{where}"
    if annotation_digest(source.table, row) != annotation_digest(origin.table, origin_row):
        text += ", with another annotation"
    return text if place is None else f"{text} ({place})"


class _RateColumn(ProgressColumn):
    """Rate of a progress bar in images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} images/s")


def _decode_all(
    paths: Sequence[str], reading: ImageReading, *, num_threads: int | None, progress: bool
) -> Iterator[_Result]:
    """Decode images on threads and yield their sizes in order; see NOTE [Threads]."""
    threads = max(1, min(count_cores(), _MAX_THREADS) if num_threads is None else num_threads)
    console = Console(stderr=True)
    columns = (TextColumn("Decoding images"), BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not (progress and console.is_terminal))
    decode = partial(_decode_chunk, reading=reading)
    with bar, ThreadPoolExecutor(threads, thread_name_prefix="lit_loader_check") as pool:
        chunks = (paths[start : start + _CHUNK_IMAGES] for start in range(0, len(paths), _CHUNK_IMAGES))
        pending = deque(pool.submit(decode, chunk) for chunk in islice(chunks, 2 * threads))
        task = bar.add_task("", total=len(paths))
        try:
            while pending:
                results = pending.popleft().result()
                # A chunk is submitted for each that is taken, so the queue stays short.
                pending.extend(pool.submit(decode, chunk) for chunk in islice(chunks, 1))
                bar.advance(task, len(results))
                yield from results
        finally:
            # After Ctrl-C only the images that are being decoded are finished.
            pool.shutdown(cancel_futures=True)


def _decode_chunk(paths: Sequence[str], *, reading: ImageReading) -> list[_Result]:
    return [_decode(path, reading) for path in paths]


def _decode(path: str, reading: ImageReading) -> _Result:
    try:
        height, width = reading.read(path).shape[1:]
    except ImageError as error:
        # The table has the path, relative to its root.
        return shorten(error.text().removeprefix(f"{reading.location(path)}: "), 300)
    return width, height


def _read_headers(
    paths: Sequence[str], reading: ImageReading, *, num_workers: int | None, progress: bool
) -> Iterator[_Result]:
    """Yield the sizes of images from their headers, in order."""
    if type(reading) is not ImageReading or not reading.exif_orientation:
        # Images in rows, and images as stored, need the reading.
        yield from (_size(path, reading) for path in paths)
        return
    # The paths are absolute already.
    sizes, reasons = read_image_sizes(Path(), paths, num_workers=num_workers, progress=progress)
    for number, (width, height) in enumerate(sizes.tolist()):
        yield reasons.get(number) or (width, height)


def _size(path: str, reading: ImageReading) -> _Result:
    try:
        height, width = reading.size(path)
    except ImageError as error:
        return shorten(error.text().removeprefix(f"{reading.location(path)}: "), 300)
    return width, height
