"""Annotation formats: readers and writers of an `AnnotationTable` by name; other packages can add theirs."""

from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.reader import Inputs, Reader, ReadOptions
from lit_loader.annotations.formats.registry import (
    find_reader,
    find_writer,
    read_annotations,
    readers,
    register_format,
    write_annotations,
    writers,
)
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.writer import Writer

__all__ = [
    "Inputs",
    "ReadOptions",
    "ReadPolicy",
    "Reader",
    "Rows",
    "Writer",
    "find_reader",
    "find_writer",
    "read_annotations",
    "readers",
    "register_format",
    "write_annotations",
    "writers",
]
