"""Numbers by which a file calls its images and objects."""

from __future__ import annotations

from lit_loader.annotations.formats import ReadPolicy, Rows


def test_id_beyond_64_bits_is_counted_but_not_stored(tmp_path):
    rows = Rows(tmp_path, ReadPolicy())
    image = rows.image("a.jpg", source_id=10**30)
    for number in (7, -(10**30), 8):
        rows.object(image, class_name="x", box=(0, 0, 1, 1), object_id=number)
    assert rows.report.count("ids of more than 64 bits", "not read") == 2
    assert (list(rows.images.source_ids), list(rows.objects.object_ids)) == ([], [7, -1, 8])
