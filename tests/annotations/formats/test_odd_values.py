"""Extreme values and numbers of names: handled by the policy, in time that grows with the file."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from lit_loader.annotations.formats import Reader, ReadPolicy, Rows, read_annotations, register_format, registry
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.registry import make_format
from lit_loader.annotations.formats.rules import build_table
from lit_loader.errors import AnnotationError
from tests.support.text_sets import write_image

QUIET = {"use_cache": False}
MANY = 30_000  # a step for each pair of them takes a minute


@pytest.fixture
def rows(tmp_path):
    write_image(tmp_path / "a.jpg")  # 60 x 50
    rows = Rows(tmp_path.resolve(), ReadPolicy())
    rows.file = "list.txt"
    return rows


@pytest.fixture
def quick():
    start_s = time.process_time()
    yield
    assert time.process_time() - start_s < 10


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e28, 10**400])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_a_polygon_with_an_odd_number_anywhere_is_malformed(rows, place, value):
    polygon = [1.0, 2.0, 9.0, 4.0, 5.0, 6.0]
    polygon[place] = value
    with pytest.raises(AnnotationError, match="polygon has a coordinate that is not finite or beyond"):
        rows.object(rows.image("a.jpg"), class_name="x", box=None, polygons=[polygon])


def test_the_largest_polygon_of_fractions_fits_the_largest_image(rows):
    rows.normalized = True
    image = rows.image("a.jpg", width=2**31 - 1, height=2**31 - 1)
    rows.object(image, class_name="x", box=(0, 0, 1, 1), polygons=[[0, 0, 9e27, 0, 9e27, 1e-6]])
    assert np.isfinite(build_table(rows, Folder(rows.root)).masks.values).all()


def test_an_option_of_a_generic_type_is_checked_by_its_class(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})

    @register_format
    @dataclass(frozen=True, kw_only=True)
    class AnyReader(Reader):
        format: ClassVar[str] = "any"
        description: ClassVar[str] = "nothing"
        pair: tuple[int, int] = (0, 0)
        names: list[str] | None = None

        def read(self, rows, unit):
            raise NotImplementedError

    assert make_format(AnyReader, {"pair": (1, 2), "names": ["x"]}) == AnyReader(pair=(1, 2), names=["x"])
    with pytest.raises(ValueError, match=r"option names='x' of format 'any' must be list\[str\] or null"):
        make_format(AnyReader, {"names": "x"})


def coco(folder, **lists):
    write_image(folder / "a.jpg")
    image = {"id": 1, "file_name": "a.jpg", "width": 60, "height": 50}
    document = {"images": [image], "categories": [{"id": 1, "name": "x"}], "annotations": []} | lists
    (folder / "a.json").write_text(json.dumps(document))
    return read_annotations("coco", folder, "a.json", policy={"malformed": "drop"}, **QUIET)


@pytest.mark.usefixtures("quick")
def test_many_attributes_of_an_object_are_read_in_time(tmp_path):
    many = {f"a{i}": "v" for i in range(MANY)}
    only = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "attributes": many}
    assert len(coco(tmp_path, annotations=[only]).attributes) == MANY


@pytest.mark.usefixtures("quick")
def test_many_unread_keys_are_counted_in_time(tmp_path):
    records = [{f"k{i}": 1 for i in range(MANY)}] + [{"q": 1}] * MANY
    report = coco(tmp_path, images=records).report
    assert report.count("q of an image", "not read") == MANY
    assert report.count(f"k{MANY - 1} of an image", "not read") == 1


@pytest.mark.usefixtures("quick")
def test_many_points_of_a_schema_are_read_in_time(tmp_path):
    (tmp_path / "Annotations").mkdir()
    points = "".join(f'<point name="p{i}"/>' for i in range(2 * MANY))
    schema = f"<schema><keypoints>{points}</keypoints></schema>"
    (tmp_path / "Annotations/a.xml").write_text(f"<annotation>{schema}</annotation>")
    table = read_annotations("voc", tmp_path, policy={"missing_image": "keep"}, **QUIET)
    assert len(table.keypoint_names) == 2 * MANY


@pytest.mark.usefixtures("quick")
def test_many_different_lists_of_values_are_united_in_time(rows):
    for number in range(MANY):
        rows.file = f"{number}.xml"
        rows.declare(class_names=("x",), attributes={f"a{number}": ("v",)})
    assert len(build_table(rows, Folder(rows.root)).attributes) == MANY
