"""The place of each image and object is where the annotation file has it, for every format."""

from __future__ import annotations

import pickle

import pytest

from lit_loader.annotations import Tiling, concatenate, tile_table
from lit_loader.annotations.formats import readers
from tests.support.annotation_tables import places_of
from tests.support.placed_sets import PLACED_SETS, text_at


def assert_places_lead_to(root, table, image_texts, object_texts):
    texts = [[text_at(root, place) for place in places] for places in places_of(table)]
    for actual_texts, expected_texts in zip(texts, (image_texts, object_texts), strict=True):
        assert len(actual_texts) == len(expected_texts)
        for actual, expected in zip(actual_texts, expected_texts, strict=True):
            assert expected in actual, (actual, expected)


@pytest.fixture(params=PLACED_SETS)
def placed_set(request):
    return PLACED_SETS[request.param]


def test_every_format_has_a_set_with_places():
    assert {placed_set.format for placed_set in PLACED_SETS.values()} >= {*readers()}


def test_places_lead_to_the_text_of_images_and_objects(tmp_path, placed_set):
    placed_set.write(tmp_path)
    table = placed_set.read(tmp_path, use_cache=False)
    assert_places_lead_to(tmp_path, table, placed_set.image_texts, placed_set.object_texts)


def test_places_survive_cache_and_derived_tables(tmp_path, placed_set):
    root = tmp_path / "set"
    placed_set.write(root)
    cold, warm = (placed_set.read(root, cache_dir=tmp_path / "cache") for _ in range(2))
    assert warm.cache_key == cold.cache_key is not None
    image_texts = placed_set.image_texts
    object_texts = placed_set.object_texts
    num_objects = int(warm.offsets[1])
    reversed_objects = object_texts[num_objects:] + object_texts[:num_objects]
    for table in (cold, warm, pickle.loads(pickle.dumps(warm)), tile_table(warm, Tiling(size=4_000))):
        assert_places_lead_to(root, table, image_texts, object_texts)
    swapped = warm.select([1, 0])
    assert_places_lead_to(root, swapped, image_texts[::-1], reversed_objects)
    doubled = concatenate([warm, swapped])
    assert_places_lead_to(root, doubled, image_texts + image_texts[::-1], object_texts + reversed_objects)
    images = [image_texts[i] for i in warm.image_of_object()]
    assert_places_lead_to(root, pickle.loads(pickle.dumps(warm.per_object())), images, object_texts)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_places_of_chunks_of_files_are_joined(voc, num_workers):
    for number in range(401):
        voc.add(f"{number:03}", ("cat", number % 90, 2, 95, 20), image=None)
    table = voc.read(num_workers=num_workers, missing_image="keep")
    assert [place.file for place in places_of(table)[0]] == [f"Annotations/{number:03}.xml" for number in range(401)]
    texts = [text_at(voc.root, place) for place in places_of(table)[1]]
    assert [f"<xmin>{number % 90}</xmin>" in text for number, text in enumerate(texts)] == [True] * 401


def test_objects_of_an_image_with_two_files_keep_their_files(voc):
    voc.add("a", ("cat", 11, 2, 20, 20))
    voc.add("a.jpg", ("cat", 22, 2, 31, 20), image=None)
    table = voc.read()
    assert (len(table), table.report.count("same_file")) == (1, 1)
    assert list(map(str, places_of(table)[0])) == ["Annotations/a.xml"]
    assert list(map(str, places_of(table)[1])) == ["Annotations/a.xml:2", "Annotations/a.jpg.xml:2"]
