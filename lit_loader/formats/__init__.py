"""Annotation formats: readers into the table, writers out of it, and both by name."""

from __future__ import annotations

from lit_loader.formats.class_list import read_class_list
from lit_loader.formats.coco import read_coco
from lit_loader.formats.coco_writer import write_coco
from lit_loader.formats.image_folder import read_image_folder
from lit_loader.formats.imglab import read_imglab
from lit_loader.formats.not_kept import what_is_lost
from lit_loader.formats.points_csv import read_points_csv
from lit_loader.formats.points_list import read_points_list
from lit_loader.formats.points_writer import write_points_list
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.pts import read_pts
from lit_loader.formats.registry import READERS, WRITERS, read_annotations, write_annotations
from lit_loader.formats.retinaface import read_retinaface
from lit_loader.formats.voc import read_voc
from lit_loader.formats.voc_ids import voc_image_paths
from lit_loader.formats.voc_policy import VocPolicy
from lit_loader.formats.voc_writer import write_voc, write_voc_xml
from lit_loader.formats.wflw import read_wflw

__all__ = [
    "READERS",
    "ReadPolicy",
    "VocPolicy",
    "WRITERS",
    "read_annotations",
    "read_class_list",
    "read_coco",
    "read_image_folder",
    "read_imglab",
    "read_points_csv",
    "read_points_list",
    "read_pts",
    "read_retinaface",
    "read_voc",
    "read_wflw",
    "voc_image_paths",
    "what_is_lost",
    "write_annotations",
    "write_coco",
    "write_points_list",
    "write_voc",
    "write_voc_xml",
]
