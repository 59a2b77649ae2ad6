"""Annotation formats: readers into the table, writers out of it."""

from __future__ import annotations

from lit_loader.formats.voc import read_voc
from lit_loader.formats.voc_policy import VocPolicy
from lit_loader.formats.voc_writer import write_voc, write_voc_xml

__all__ = ["VocPolicy", "read_voc", "write_voc", "write_voc_xml"]
