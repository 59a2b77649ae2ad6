"""The benchmark of mixed samples with few files, and its study with few steps."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.mixing import (
    KINDS,
    MIXES,
    PEER,
    BufferMosaic,
    compare_costs,
    compare_peers,
    make_datamodule,
    write_objects,
)
from benchmarks.mixing_study import VARIANTS, StudySet, print_results, run_study, study_sets
from lit_loader.datasets import ShapesSource
from tests.support.photo_like import photo_like

# The reference decodes with torchvision, as its users do.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")
NUM_FILES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("objects")
    source = path / "source.png"
    photo_like(480, 640, seed=0).save(source)
    write_objects(path, NUM_FILES, sources=[source])
    return path


def test_polygons_of_objects_fill_their_boxes(folder):
    datamodule = make_datamodule(folder, "exact", num_workers=0, masks=True)
    (table,) = datamodule.tables("train")
    assert table.num_objects == 7 * NUM_FILES
    sides = table.boxes[:, 2:] - table.boxes[:, :2]
    for row, (width, height) in enumerate(sides.tolist()):
        # A polygon of 16 corners has 97 % of the area of its ellipse.
        share = table.masks.rasterize(row, 480, 640).sum() / (width * height)
        assert share == pytest.approx(0.765, abs=0.03)


@pytest.mark.parametrize("masks", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_costs_of_every_mix_are_compared(folder, masks, capsys):
    figures = compare_costs(folder, "cached", num_workers=0, masks=masks, rounds=1, epochs=1)
    assert list(figures.seconds) == list(MIXES)
    assert ("mosaic, plain samples of CPU time" in capsys.readouterr().out) is not masks


@pytest.mark.soak
def test_buffer_and_mosaics_are_compared(folder):
    figures = compare_peers(folder, rounds=1, epochs=1)
    assert list(figures.seconds) == [PEER, *(f"ours, {kind}" for kind in KINDS)]


def test_boxes_of_a_buffer_mosaic_are_around_the_pasted_objects(folder):
    dataset = BufferMosaic(folder, side=200)
    for index in range(NUM_FILES):
        pixels = torch.zeros((3, 120, 160), dtype=torch.uint8)
        pixels[:, 40:80, 20 + index : 90] = 255
        dataset.buffer[index] = pixels
        dataset.boxes[index] = torch.tensor([[20.0 + index, 40, 90, 80]])
        dataset.labels[index] = torch.tensor([1])
    num_boxes = 0
    for index in range(NUM_FILES):
        image, target = dataset[index]
        assert image.shape == (3, 200, 200)
        for x0, y0, x1, y1 in target["boxes"].tolist():
            assert 0 <= x0 < x1 <= 200
            assert 0 <= y0 < y1 <= 200
            # Resizing blurs the edges.
            inside = image[:, round(y0) + 2 : round(y1) - 2, round(x0) + 2 : round(x1) - 2]
            assert (inside == 255).all()
        num_boxes += len(target["boxes"])
        assert len(target["labels"]) == len(target["boxes"])
    assert num_boxes > 2 * NUM_FILES


def test_buffer_has_the_last_decoded_images(folder):
    dataset = BufferMosaic(folder, capacity=3)
    for index in (5, 2, 7, 0):
        dataset[index]
    assert list(dataset.buffer) == [2, 7, 0]


@pytest.fixture
def tiny_sets(tmp_path):
    source = ShapesSource(
        num_images={"train": 16, "val": 8}, class_shares=(0.5, 0.3, 0.2), cache_dir=str(tmp_path), progress=False
    )
    return {"tiny": StudySet(source=source, size=(64, 64), photometric=0.0, batch_size=8, num_epochs=2)}


def test_study_trains_each_variant_once(tiny_sets, tmp_path, capsys):
    results = tmp_path / "runs" / "results.jsonl"
    rows = run_study(tiny_sets, VARIANTS, [0], results)
    assert [row["variant"] for row in rows] == list(VARIANTS)
    # Mixing changes samples, not steps.
    assert {row["steps"] for row in rows} == {4}
    assert {row["rarest"] for row in rows} == {"star"}
    assert run_study(tiny_sets, VARIANTS, [0], results) == rows
    assert [json.loads(line) for line in results.read_text().splitlines()] == rows
    print_results(rows)
    printed = capsys.readouterr().out
    assert all(f"\n  {variant} " in printed for variant in VARIANTS)


def test_results_are_means_and_ranges_over_the_seeds(capsys):
    common = {"set": "tiny", "steps": 4, "map_50": 0.5, "rarest": "star", "rarest_ap": 0.1, "rarest_ap_50": 0.2}
    print_results(
        [
            {**common, "variant": "mosaic", "seed": 0, "map": 0.25, "seconds": 10},
            {**common, "variant": "mosaic", "seed": 1, "map": 0.75, "seconds": 30},
        ]
    )
    assert "mAP 0.500 (0.250 to 0.750)" in (printed := capsys.readouterr().out)
    assert "AP of star 0.100 (0.100 to 0.100)" in printed
    assert "2 seeds, 20 s a run" in printed


def test_bccd_is_left_out_without_its_folder(tmp_path):
    assert list(study_sets(None)) == ["shapes"]
    assert list(study_sets(tmp_path)) == ["shapes", "bccd"]


def test_samples_of_the_study_are_mixed_in_four_fifths_of_the_epochs():
    (study_set,) = study_sets(None).values()
    for variant in ("mosaic", "copy_paste"):
        mix = VARIANTS[variant](study_set)
        chances = [mix.chance(epoch) for epoch in range(study_set.num_epochs)]
        assert chances == [1] * 13 + [0] * 3
