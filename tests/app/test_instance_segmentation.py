"""Sets with polygons in YOLO's and LabelMe's formats train Mask R-CNN, and `predict` writes its masks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from lit_loader.annotations.masks import Masks, RunLengths, decode_counts
from lit_loader.app.building import build_run
from lit_loader.callbacks import PredictionWriter
from tests.datasets.test_masks import draw_polygons
from tests.support.made_sets import copy_images, make_yolo, split_in_three
from tests.support.shipped_configs import composed

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*could not find the monitored key"),
]
SMALL = [
    "model=maskrcnn_small",
    "model.model.channels=8",
    "model.model.head_channels=8",
    "model.model.strides=[4,8]",
    "model.model.anchor_sizes=[16,32]",
]
SMALL += ["model.model.min_size=64", "model.model.max_size=96", "model.model.score_thresh=0.0"]
SMALL += ["model.model.detections_per_img=3", "datamodule.masks=true", "datamodule.batch_size=2", "workers=inline"]
SMALL += [
    "trainer=cpu",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "callbacks=none",
    "logger=none",
    "dataset.progress=false",
]
SMALL += ["trainer.enable_progress_bar=false", "+trainer.enable_checkpointing=false", "trainer.limit_val_batches=1"]


def make_labelme(root, tables):
    for split, table in tables.items():
        copy_images(table, root / split)
        for image, path in enumerate(table.image_paths):
            rows = range(int(table.offsets[image]), int(table.offsets[image + 1]))
            shapes = [
                {
                    "label": table.class_names[table.labels[row]],
                    "shape_type": "polygon",
                    "group_id": row,
                    "points": part.tolist(),
                }
                for row in rows
                for part in table.masks.polygons(row)
            ]
            size = {"imageWidth": int(table.widths[image]), "imageHeight": int(table.heights[image])}
            document = {"version": "5.0.0", "flags": {}, "shapes": shapes, "imagePath": path, "imageData": None, **size}
            (root / split / f"{path}.json").write_text(json.dumps(document))


SETS = {
    "yolo": (make_yolo, ["dataset=yolo", "dataset.test=test"]),
    "labelme": (
        make_labelme,
        ["dataset=files", "dataset.format=labelme", *(f"dataset.{name}={name}" for name in ("train", "val", "test"))],
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_masks_are_trained_on_and_predicted_masks_are_written(name, tmp_path):
    make, words = SETS[name]
    root = tmp_path / "set"
    root.mkdir()
    tables = split_in_three(tmp_path, draw=draw_polygons)
    make(root, tables)
    folders = [
        f"dataset.root={root}",
        f"dataset.cache_dir={tmp_path / 'cache'}",
        f"paths.output_dir={tmp_path / 'run'}",
    ]
    cfg = composed(*words, *SMALL, *folders, f"paths.work_dir={tmp_path}")
    writer = PredictionWriter(folder=tmp_path / "out")
    run = build_run(cfg, callbacks=(writer,))
    (table,) = run.datamodule.tables("train")
    for row in range(table.num_objects):
        if tables["train"].masks.polygons(row) and name == "yolo":
            expected = tables["train"].masks.rasterize(row, 64, 96)
            actual = table.masks.rasterize(row, 64, 96)
            assert (actual != expected).sum() <= 0.02 * expected.sum()
    assert all(table.masks.polygons(row) for row in range(table.num_objects))
    run.trainer.fit(run.model, datamodule=run.datamodule)
    assert {"val/mask_map", "val/mask_map_50"} <= run.trainer.callback_metrics.keys()
    predictions = run.trainer.predict(run.model, datamodule=run.datamodule)
    outputs = [image for batch in predictions for image in batch]
    results = json.loads(writer.paths[0].read_text())
    assert len(results) == sum(len(image["labels"]) for image in outputs) > 0
    masks = torch.cat([image["masks"] for image in outputs]).numpy()
    segmentations = [result["segmentation"] for result in results]
    rows = [RunLengths(decode_counts(item["counts"]), *item["size"]) for item in segmentations]
    read_again = Masks.from_rows(rows)
    actual = np.stack([read_again.rasterize(row, 64, 96) for row in range(len(rows))])
    assert np.array_equal(actual.astype(bool), masks)


@pytest.mark.soak
def test_model_of_whole_images_is_tested_and_predicts_in_tiles_by_one_override(app, tmp_path):
    """One override of `eval` and `predict` slices images for boxes and masks."""
    drawn = ["experiment=shapes_masks", "dataset.num_images={train: 4, val: 2, test: 2}", "dataset.image_size=64"]
    drawn += ["dataset.class_shares=[0.5,0.3,0.2]", "callbacks=last_checkpoint", "+trainer.enable_model_summary=false"]
    sizes = [word for word in SMALL if word.startswith("model.model.")]
    trained = app("train", *drawn, *sizes, "trainer=cpu", "trainer.max_steps=2", "workers=inline", "logger=none",
                  "datamodule.batch_size=2", "trainer.enable_progress_bar=false", small=False)  # fmt: skip
    checkpoint = f"ckpt_path={trained.folder}/checkpoints/last.ckpt"
    tested = app("eval", checkpoint, "datamodule.tiling={size: 48, stages: [test]}", small=False)
    assert "mask mAP" in tested.out
    assert "tiles" in tested.out
    app("predict", checkpoint, "datamodule.tiling={size: 48, stages: [predict]}", "predict.num_pictures=0", small=False)
    (file,) = tmp_path.glob("run2/predictions/predictions.json")
    results = json.loads(file.read_text())
    assert results
    assert {tuple(result["segmentation"]["size"]) for result in results} == {(64, 64)}
