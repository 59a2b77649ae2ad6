"""Text lists become one XML set that trains boxes, points, classes and attributes: ``convert``, then ``train``."""

from __future__ import annotations

import json
import shutil

import pytest

from lit_loader.annotations import KeypointSchema
from lit_loader.annotations.formats import read_annotations, write_annotations
from lit_loader.app.commands.main import main
from lit_loader.datasets import ShapesSource

COLUMNS = "path class box points_v attribute:finish"
SCHEMA = {
    "names": ("top", "top_left", "top_right", "bottom_left", "bottom_right"),
    "flip_pairs": ((1, 2), (3, 4)),
    "normalization_pair": (1, 2),
}
CONVERT = [
    *("convert", "keypoints_txt", "shapes-txt", "train=train.txt", "val=val.txt", "test=test.txt"),
    *("--to", "voc", "--out", "shapes-xml"),
    *("--option", f"columns={COLUMNS}", "--option", "image_dir=images", "--option", f"schema={json.dumps(SCHEMA)}"),
]
TRAIN = [
    "experiment=unified",
    "dataset=voc",
    "dataset.root=shapes-xml",
    "model.model._target_=torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn",
    "model.model.min_size=64",
    "model.model.max_size=96",
    "model.model.box_detections_per_img=10",
    "model.weights=null",
    "trainer=cpu",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "workers.num_workers=0",
    "hydra.run.dir=run",
    "callbacks=[default,pictures]",
]


@pytest.fixture
def schema(tmp_path, monkeypatch):
    """Write a folder of lists, and return the schema of their points."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shapes-txt"
    (folder / "images").mkdir(parents=True)
    num_images = {"train": 8, "val": 4, "test": 4}
    source = ShapesSource(num_images=num_images, class_shares=(0.6, 0.3, 0.1))
    for split in num_images:
        (table,) = source.tables(split)
        write_annotations("keypoints_txt", table, folder, f"{split}.txt", columns=COLUMNS, image_dir="JPEGImages")
        for index in range(table.num_images):
            shutil.copy(table.image_path(index), folder / "images")
    return KeypointSchema(**SCHEMA)


def test_xml_set_has_the_objects_of_the_lists(schema, tmp_path):
    assert main(CONVERT) == 0
    options = {"columns": COLUMNS, "schema": schema, "image_dir": "images"}
    original = read_annotations("keypoints_txt", tmp_path / "shapes-txt", "train.txt", **options)
    converted = read_annotations("voc", tmp_path / "shapes-xml", "train")
    assert (converted.num_images, converted.num_objects) == (8, original.num_objects)
    assert converted.keypoint_names == original.keypoint_names
    assert set(converted.class_names) == set(original.class_names)
    assert set(converted.attributes) == {"finish"}


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.soak
def test_xml_set_trains_all_tasks_on_a_torchvision_backbone(schema, tmp_path, capsys):
    assert main(CONVERT) == 0
    capsys.readouterr()
    assert main(["train", *TRAIN]) == 0
    out = capsys.readouterr().out
    for part in ("mAP@50", "NME", "finish macro-F1", "finish: recall", "objects missed", "star", "hollow"):
        assert part in out
    assert list((tmp_path / "run").rglob("*.ckpt"))
    (report,) = (tmp_path / "run").rglob("class_report.png")
    assert report.stat().st_size > 5000
