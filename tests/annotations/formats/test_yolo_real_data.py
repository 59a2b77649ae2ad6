"""The YOLO reader on the shared real data sets; skipped where they are not."""

from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError


def read(root, name, **options):
    return read_annotations("yolo", root, name, use_cache=False, **options)


@pytest.mark.parametrize(("root", "options"), [("yolo_mark", {"data_file": "data/obj.data"}), ("yolo_mark/data", {})])
def test_yolo_mark_counts_equal_its_readme(shared_data, root, options):
    with pytest.raises(AnnotationError, match=r"train\.txt:6: there is no image '.*air6\.jpg'"):
        read(shared_data / root, "train", **options)
    table = read(shared_data / root, "train", policy={"missing_image": "drop"}, **options)
    assert (table.num_images, table.report.count("missing_image", "drop")) == (8, 3)
    assert dict(zip(table.class_names, table.class_counts().tolist(), strict=True)) == {"air": 13, "bird": 6}
    assert table.report.count("out_of_image", "keep") == 1


IMAGE_LABELS = {"image_dir": "Images", "label_dir": "Annotations"}


@pytest.mark.parametrize(
    ("folder", "name", "options"),
    [("strict", "train", {}), ("labels", "train", {}), ("labels", "val", {}), ("annotations", ".", IMAGE_LABELS)],
)
def test_datumaro_yolo_sets_are_read(shared_data, folder, name, options):
    table = read(shared_data / "formats_datumaro/yolo_dataset" / folder, name, **options)
    assert (table.num_images, table.num_classes) == (1, 10)
    assert [table.class_names[label] for label in table.labels] == ["label_2", "label_4"]
    assert table.boxes.round(3).tolist() == [[0, 2, 4, 4], [3, 3, 5, 6]]
