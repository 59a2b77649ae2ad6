from __future__ import annotations

import pickle

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, Tiling, concatenate, tile_table
from lit_loader.annotations.places import Place, Places
from lit_loader.errors import CacheError
from tests.support.annotation_tables import full_table, places_of

PLACES = [
    Place(file="Annotations/a.xml", line=31),
    Place(file="ä.json", entry="annotations[17]"),
    None,
    Place(file="images/train"),
    Place(file="Annotations/a.xml", line=7),
]


def test_text_of_a_place_names_file_and_line_or_entry():
    assert [str(place) for place in PLACES if place] == [
        "Annotations/a.xml:31",
        "ä.json annotations[17]",
        "images/train",
        "Annotations/a.xml:7",
    ]


@pytest.mark.parametrize("kind", ["image", "object"])
def test_column_restores_places(kind):
    column = Places.from_rows(PLACES)
    assert [column.place(row, kind) for row in range(len(column))] == PLACES
    assert column.arrays().keys() == {"source_offsets", "sources", "numbers", "positions"}
    restored = pickle.loads(pickle.dumps(column)).take(np.array([4, 1, 1]))
    assert [restored.place(row, kind) for row in range(3)] == [PLACES[4], PLACES[1], PLACES[1]]


def test_selected_rows_carry_no_names_of_other_files():
    column = Places.from_rows([Place(file=f"Annotations/{i}.xml", line=i + 1) for i in range(1_000)])
    selected = column.take(np.array([998, 2]))
    assert bytes(selected.sources) == b"Annotations/2.xmlAnnotations/998.xml"
    assert selected.place(0, "object") == Place(file="Annotations/998.xml", line=999)


def test_a_row_takes_eight_bytes_apart_from_the_names():
    column = Places.from_rows([Place(file="a.txt", line=i + 1) for i in range(1_000)])
    assert sum(array.nbytes for array in column.arrays().values()) == 8 * 1_000 + 2 * 8 + len("a.txt")


def test_joined_columns_keep_their_files():
    joined = Places.joined([Places.from_rows(PLACES), Places.from_rows([]), Places.from_rows([None, PLACES[3]])])
    assert [joined.place(row, "image") for row in range(len(joined))] == [*PLACES, None, PLACES[3]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": np.array([0, 1, -1, 2, 3], np.int32)}, "numbers -1..3 of places are outside the 3 sources"),
        ({"numbers": np.array([-2, 0, 0, 0, 0], np.int32)}, "numbers -2..0 of places"),
        ({"positions": np.zeros(4, np.int32)}, "5 numbers and 4 positions"),
        ({"source_offsets": np.array([0, 17, 5, 9])}, "text offsets"),
        ({"positions": np.zeros(5, np.int64)}, "must be a vector of int32"),
    ],
)
def test_inconsistent_arrays_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Places(*(Places.from_rows(PLACES).arrays() | change).values())


@pytest.mark.parametrize("entry", ["annotations", "annotations[]", "annotations[-1]", "a[1.5]"])
def test_entry_without_a_number_is_refused(entry):
    with pytest.raises(ValueError, match="as 'name\\[number\\]'"):
        Places.from_rows([Place(file="a.json", entry=entry)])


def test_table_without_places_has_none():
    table = full_table(image_places=None, object_places=None)
    assert places_of(table) == ([None] * 3, [None] * 3)
    joined = concatenate([table, full_table()])
    assert places_of(joined) == tuple(
        nothing + places for nothing, places in zip(places_of(table), places_of(full_table()), strict=True)
    )


def test_row_outside_the_table_is_an_error():
    table = full_table()
    assert table.place_of_image(-2) == table.place_of_image(1)
    assert table.place_of_object(-1) == table.place_of_object(2)
    for find_place in (table.place_of_image, table.place_of_object, full_table(image_places=None).place_of_image):
        with pytest.raises(IndexError):
            find_place(3)


def test_places_survive_every_derived_table(tmp_path):
    table = full_table(regions=None, file_sizes=None)
    images, objects = places_of(table)
    image_of_object = table.image_of_object().tolist()
    table.save(tmp_path / "t.arrow", key="k")
    cached = AnnotationTable.load(tmp_path / "t.arrow", key="k")
    for source in (table, cached):
        assert places_of(source.select([2, 0])) == ([images[2], images[0]], [objects[2], *objects[:2]])
        per_object = source.per_object([2, 1])
        assert places_of(per_object) == ([images[image_of_object[row]] for row in (2, 1)], [objects[2], objects[1]])
        assert places_of(pickle.loads(pickle.dumps(per_object))) == places_of(per_object)
        assert places_of(source.without_crowds()) == (images[1:], objects[2:])
        renamed = source.with_renamed_classes({"dog": "wolf"})
        assert places_of(pickle.loads(pickle.dumps(renamed.select([1, 2])))) == (images[1:], objects[2:])
        assert places_of(concatenate([source, source.select([0])])) == (images + images[:1], objects + objects[:2])


def test_objects_of_a_tile_keep_their_places():
    table = full_table(regions=None, file_sizes=None, masks=None, heights=[80, 80, 60], widths=[100, 100, 50])
    tiles = tile_table(table, Tiling(size=40))
    assert len(tiles) > len(table)
    place_by_path = {path: table.place_of_image(row) for row, path in enumerate(table.image_paths)}
    for row, path in enumerate(tiles.image_paths):
        assert tiles.place_of_image(row) == place_by_path[path]
    assert {tiles.place_of_object(row) for row in range(tiles.num_objects)} == set(places_of(table)[1])


def test_cache_file_with_numbers_of_no_file_is_refused(tmp_path):
    table = full_table()
    # As another program could write it, with a right checksum.
    numbers = np.array([0, 7, 0], np.int32)
    object.__setattr__(table.image_places, "numbers", numbers)
    table.save(tmp_path / "t.arrow", key="k")
    with pytest.raises(CacheError, match=r"numbers 0\.\.7 of places are outside the 2 sources"):
        AnnotationTable.load(tmp_path / "t.arrow", key="k")
