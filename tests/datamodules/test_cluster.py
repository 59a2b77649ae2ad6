"""A data set as clusters have it: images behind links that leave the root, a root to read only, three ranks.

The tree is walked by the process of each host that prepares the data, once for each command of the trainer, and by no
other one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lit_loader import DetectionDataModule
from lit_loader.annotations.formats import write_annotations
from lit_loader.annotations.formats.folder import Folder
from lit_loader.datamodules import ClassificationDataModule
from lit_loader.datasets import FormatSource, ShapesSource, VocSource
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.recording_model import RecordingModel
from tests.support.text_sets import write_image

pytestmark = [pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")]

SPLITS = {"train": 12, "val": 6, "test": 6}
RANKS = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder whose images and XML files are links into another one; its own files are lists and COCO JSON."""
    folder = tmp_path_factory.mktemp("cluster")
    drawn = ShapesSource(
        num_images=SPLITS, image_size=32, class_shares=(0.5, 0.3, 0.2), cache_dir=str(folder / "store"), progress=False
    )
    root = folder / "project" / "data"
    root.mkdir(parents=True)
    for split in SPLITS:
        (table,) = drawn.tables(split)
        write_annotations("coco", table, root, f"{split}.json", allow_loss=True, progress=False)
    (root / "JPEGImages").mkdir()
    for image in Path(table.root, "JPEGImages").iterdir():
        (root / "JPEGImages" / image.name).symlink_to(image)
    (root / "Annotations").symlink_to(Path(table.root, "Annotations"))
    (root / "ImageSets").symlink_to(Path(table.root, "ImageSets"))
    for path in (root, root / "JPEGImages"):
        path.chmod(0o555)
    yield root
    for path in (root, root / "JPEGImages"):
        path.chmod(0o755)


@pytest.fixture(params=["voc", "coco"])
def source(request, root, tmp_path):
    if request.param == "voc":
        return VocSource(root=str(root), cache_dir=str(tmp_path / "cache"), progress=False)
    lists = {split: f"{split}.json" for split in SPLITS}
    return FormatSource(format="coco", root=str(root), **lists, cache_dir=str(tmp_path / "cache"), progress=False)


def looked_at(root, work):
    """Call ``work`` and return which folders were listed, and which annotation files were opened or compared."""
    listed = []
    files = []
    is_on = [True]
    annotations = (".xml", ".json", ".txt")

    def note(event, arguments):
        if not is_on[0] or event not in ("os.scandir", "os.listdir", "open"):
            return
        path = str(arguments[0])
        if path.startswith(str(root)):
            if event != "open":
                listed.append(Path(path).name)
            elif path.endswith(annotations):
                files.append(Path(path).name)

    stamp = Folder.stamp
    Folder.stamp = lambda self, name: files.append(name) or stamp(self, name)  # os.stat has no audit event
    sys.addaudithook(note)  # cannot be removed
    try:
        work()
    finally:
        is_on[0] = False
        Folder.stamp = stamp
    return {"listed": sorted(listed), "num_files": len(files)}


def fit_and_test(source, folder):
    """Note for each command what this rank looked at."""
    datamodule = DetectionDataModule(source, batch_size=2, num_workers=0)
    model = RecordingModel(lambda batch: None)
    runner = trainer(max_epochs=1)
    looks = [
        looked_at(source.root, lambda: runner.fit(model, datamodule=datamodule)),
        looked_at(source.root, lambda: runner.test(model, datamodule=datamodule, verbose=False)),
    ]
    (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(looks))


def looks_of_ranks(source, folder):
    folder.mkdir()
    on_ranks(RANKS, folder, fit_and_test, source, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def listing(root):
    return sorted((str(path), path.lstat().st_mtime_ns) for path in [root, *root.rglob("*")])


def test_one_process_of_a_host_walks_the_tree_once_a_command_and_the_others_never(source, root, tmp_path):
    files = listing(root)
    first, *other_ranks = looks_of_ranks(source, tmp_path / "ranks")
    for command in first:
        assert command["num_files"] > 0
        assert len(set(command["listed"])) == len(command["listed"])  # every folder once
    nothing = {"listed": [], "num_files": 0}
    assert other_ranks == [[nothing, nothing]] * (RANKS - 1)
    assert listing(root) == files


@pytest.mark.filterwarnings("ignore:the cache .* cannot be used")
def test_without_a_cache_to_write_every_rank_reads_the_files(source, tmp_path):
    (tmp_path / "file").touch()
    source = replace(source, cache_dir=str(tmp_path / "file"))
    source.prepare()
    copied = replace(source)
    look = looked_at(source.root, copied.reopen)
    assert look["num_files"] > 0
    assert [table.num_images for table in copied.tables("test")] == [6]


class OwnPreparation(DetectionDataModule):
    def prepare_data(self):
        pass  # of a user who downloads, and leaves the source alone


@pytest.mark.parametrize(
    ("kind", "local_rank", "node_rank", "per_node", "is_prepared"),
    [
        (DetectionDataModule, 1, 0, True, True),
        (DetectionDataModule, 2, 1, True, True),
        (DetectionDataModule, 1, 0, False, True),
        (DetectionDataModule, 0, 0, True, False),  # the first look prepares the source
        (DetectionDataModule, 1, 1, False, False),  # no process of this node does
        (OwnPreparation, 1, 0, True, False),
    ],
)
def test_the_files_are_not_looked_at_only_where_another_process_has_prepared_them(
    source, kind, local_rank, node_rank, per_node, is_prepared
):
    source.prepare()
    datamodule = kind(replace(source), batch_size=2, num_workers=0)
    datamodule.prepare_data_per_node = per_node
    datamodule.trainer = SimpleNamespace(local_rank=local_rank, node_rank=node_rank, callbacks=[])
    look = looked_at(source.root, lambda: datamodule.setup("test"))
    assert (look["num_files"] == 0) is is_prepared
    assert datamodule.tables("test")[0].num_images == 6


def test_files_that_change_between_two_runs_are_read_again(tmp_path):
    source = FormatSource(format="image_folder", root=str(tmp_path), train="set", cache_dir=str(tmp_path / "cache"))
    write_image(tmp_path / "set/a/1.png")
    datamodule = ClassificationDataModule(source, batch_size=2, num_workers=0)

    def images_of_a_run():
        datamodule.prepare_data()
        datamodule.setup("fit")
        return [len(data) for data, _ in datamodule._open("train")]

    assert images_of_a_run() == [1]
    opened = datamodule._open("train")
    write_image(tmp_path / "cache/picture.png")
    assert images_of_a_run() == [1]
    assert datamodule._open("train") is opened
    write_image(tmp_path / "set/a/2.png")
    datamodule.setup("fit")
    assert datamodule._open("train") is opened
    assert images_of_a_run() == [2]
