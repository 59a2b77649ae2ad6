"""COCO JSON: its reader, its writer, and the format of results that COCO's own evaluation takes."""

from lit_loader.annotations.formats.coco.reader import CocoReader
from lit_loader.annotations.formats.coco.writer import CocoWriter, coco_results

__all__ = ["CocoReader", "CocoWriter", "coco_results"]
