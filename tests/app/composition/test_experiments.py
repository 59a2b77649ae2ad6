"""Every experiment fits, validates, tests and predicts on a small set of its layout, from random weights."""

from __future__ import annotations

from functools import partial

import pytest
from matplotlib.figure import Figure

from lit_loader.app.building import build_run
from tests.datasets.test_masks import draw_polygons
from tests.support.drawn_set import draw_set
from tests.support.made_sets import WITHOUT_POINTS, face_columns, make_coco, make_image_folder, make_voc, split_in_three
from tests.support.shipped_configs import EXPERIMENTS, composed

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")

SHAPES = ["dataset.num_images={train: 8, val: 4, test: 4}", "dataset.image_size=48"]
SHAPES += ["dataset.class_shares=[0.4,0.3,0.3]", "dataset.finish_shares=[0.4,0.3,0.3]"]
FIGURES = ["dataset.num_images={train: 8, val: 4, test: 4}", "dataset.image_size=64"]
NET = ["model.model.channels=8", "model.model.head_channels=32"]
SIZES = ["model.model.min_size=64", "model.model.max_size=96"]
DETECTOR = ["model.weights=null", *SIZES]
CROPS = ["model.weights=null", "datamodule.train_transforms.size=32"]
QUICK = [
    *("trainer=cpu", "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1", "trainer.log_every_n_steps=1"),
    *(f"trainer.limit_{stage}_batches=2" for stage in ("train", "val", "test", "predict")),
    *("workers=inline", "datamodule.batch_size=2", "num_threads=1", "dataset.progress=false"),
    # The state of an optimizer is twice as large as the weights.
    *(f"callbacks.{name}.save_weights_only=true" for name in ("model_checkpoint", "last_checkpoint")),
    *("callbacks=[default,pictures]", "~callbacks.rich_progress", "trainer.enable_progress_bar=false"),
]
PICTURES_AS_SHIPPED = "shapes_finish"
PLAIN = partial(split_in_three, objects=1, **WITHOUT_POINTS)
POINTS = partial(split_in_three, objects=1)
FACES = partial(split_in_three, objects=1, **face_columns(18))
MASKS = partial(split_in_three, draw=draw_polygons)


@pytest.fixture
def coarse_pictures(monkeypatch):
    """Save pictures with few pixels and without a layout, which take half of the time of a run."""
    save = Figure.savefig

    def save_coarsely(figure, file, **settings):
        figure.set_layout_engine("none")
        save(figure, file, **settings | {"dpi": 20})

    monkeypatch.setattr(Figure, "savefig", save_coarsely)


def one_folder(tmp_path):
    return {"Dataset": draw_set(tmp_path / "drawn", num_images=18, objects=1, **WITHOUT_POINTS)}


DRAWN = {  # experiments that bring their data, and overrides
    "figures": [*FIGURES, *NET, "model.model.min_size=64"],
    "shapes": [*SHAPES, *NET, "model.model.min_size=48"],
    "shapes_copy_paste": [*SHAPES, *NET, "model.model.min_size=48"],
    "shapes_finish": [*SHAPES, *NET],
    "shapes_landmarks": [*SHAPES, *NET],
    "shapes_masks": [*SHAPES, *NET, "model.model.min_size=48"],
    "shapes_regression": [*SHAPES, *NET],
    "shapes_unified": [*SHAPES, *NET, "model.model.min_size=48"],
}
LAYOUTS = {  # the function that writes a set of an experiment, the one that draws it, and overrides
    "bccd": (make_voc, PLAIN, [*NET, *SIZES]),
    "bccd_mosaic": (make_voc, PLAIN, [*NET, *SIZES]),
    "bccd_cells": (make_image_folder, PLAIN, NET),
    "classification": (make_image_folder, PLAIN, ["dataset=image_folder", *CROPS]),
    "coco_fasterrcnn": (make_coco, PLAIN, DETECTOR),
    "coco_keypoints": (partial(make_coco, kind="person_keypoints"), POINTS, DETECTOR),
    "coco_maskrcnn": (make_coco, MASKS, DETECTOR),
    "coco_retinanet": (make_coco, PLAIN, DETECTOR),
    "faces": (make_voc, FACES, [*NET, "datamodule.train_transforms.size=32"]),
    "landmarks": (make_voc, POINTS, ["dataset=voc", *CROPS]),
    "sign_digits": (make_image_folder, one_folder, NET),
    "unified": (make_voc, POINTS, ["dataset=voc", *DETECTOR]),
    "voc_fasterrcnn": (make_voc, PLAIN, DETECTOR),
    "voc_retinanet": (make_voc, PLAIN, DETECTOR),
}
# Similar to other experiments, so only the soak trains them.
SIMILAR = {"bccd_mosaic", "faces", "shapes_copy_paste", "shapes_landmarks", "shapes_regression", "sign_digits"}
LONG = {  # experiments with large models, and overrides that choose a small one for the same data
    "classification": ["model=classifier_small"],
    "coco_fasterrcnn": ["model=fcos_small"],
    "coco_keypoints": ["model=keypointrcnn_small"],
    "coco_maskrcnn": ["model=maskrcnn_small"],
    "coco_retinanet": ["model=fcos_small"],
    "landmarks": ["model=heatmaps_small"],
    "unified": ["model=multi_task_small"],
    "voc_fasterrcnn": ["model=fcos_small"],
    "voc_retinanet": ["model=fcos_small"],
}


def words_of(name, tmp_path):
    if name in DRAWN:
        return DRAWN[name]
    make, draw, words = LAYOUTS[name]
    root = tmp_path / "set"
    root.mkdir()
    make(root, draw(tmp_path))
    return [f"dataset.root={root}", *words]


def test_every_experiment_has_overrides_that_make_it_small():
    """An experiment without an entry would train at full size, or not at all."""
    assert {*DRAWN, *LAYOUTS} == {*EXPERIMENTS}, "add the experiment to DRAWN or LAYOUTS, a large model also to LONG"
    assert LONG.keys() <= LAYOUTS.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in SIMILAR | {*LONG} else ()) for name in EXPERIMENTS]
)
def test_every_experiment_fits_validates_tests_and_predicts(name, tmp_path, request):
    words = []
    if name != PICTURES_AS_SHIPPED:
        request.getfixturevalue("coarse_pictures")
        words.append("callbacks.curves.num_worst=1")
    fit_validate_test_and_predict(name, tmp_path, *words)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name != "coco_keypoints" else ()) for name in LONG]
)
@pytest.mark.usefixtures("coarse_pictures")
def test_data_of_long_experiments_train_a_small_model(name, tmp_path):
    fit_validate_test_and_predict(name, tmp_path, "callbacks.curves.num_worst=1", *LONG[name], *NET)


def fit_validate_test_and_predict(name, tmp_path, *words):
    folders = [f"dataset.cache_dir={tmp_path / 'cache'}", f"paths.output_dir={tmp_path / 'run'}"]
    folders += [f"paths.work_dir={tmp_path}"]
    run = build_run(composed(f"experiment={name}", *words_of(name, tmp_path), *folders, *QUICK, *words))
    run.trainer.fit(run.model, datamodule=run.datamodule)
    assert run.trainer.global_step == 2
    assert run.model.monitor in run.trainer.callback_metrics
    run.trainer.validate(run.model, datamodule=run.datamodule, verbose=False)
    run.trainer.test(run.model, datamodule=run.datamodule, verbose=False)
    assert run.model.test_report()
    assert len(run.trainer.predict(run.model, datamodule=run.datamodule)) == 2
    assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert (tmp_path / "run/csv/version_0/metrics.csv").exists()
    pictures = {path.name for path in (tmp_path / "run/pictures").glob("*.png")}
    assert ("schedules.png" in pictures) == bool(run.datamodule.schedules())
    is_mirrored = any(map(run.datamodule.mirror_pairs, run.datamodule.tables("train")))
    assert ("mirrored.png" in pictures) == is_mirrored
    assert len(pictures - {"schedules.png", "mirrored.png"}) == 3
