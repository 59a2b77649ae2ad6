"""``lit-loader show --batches``: the batches of a config are equal to the batches of its training run."""

from __future__ import annotations

import pytest

from lit_loader.app.commands import main
from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.inspection import show_batches
from tests.support.face_lists import write_faces

DATA = [
    "datamodule=landmarks",
    "dataset=files",
    "dataset.format=keypoints_txt",
    "dataset.root=faces",
    "dataset.train=train.txt",
    "dataset.val=val.txt",
    "+dataset.options.columns=[path,points,class]",
    "+dataset.options.schema=face_5",
    "datamodule.batch_size=4",
    "workers.num_workers=0",
]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The command sets the seed of the process, which the test must not leave behind.
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    write_faces(tmp_path / "faces", "train.txt", 20)
    write_faces(tmp_path / "faces", "val.txt", 6, start=20)

    def show(*words, code=0):
        assert main(["show", *words, "--no-progress"]) == code
        return capsys.readouterr()

    return show


def test_pictures_are_those_of_the_data_module_with_the_seed_of_the_config(run, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr("lit_loader.inspection.Gallery.save", lambda gallery, path: saved.append(gallery) or [path])
    run("--batches", *DATA, "seed=5", "--epoch", "1", "--batch", "2", "--num", "2", "--stage", "train")
    pictures = {}
    for seed in (5, 6):
        monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
        datamodule = build_datamodule(compose_config(overrides=[*DATA, f"seed={seed}"]))
        pictures[seed] = show_batches(datamodule, "train", epoch=1, start=2, num_batches=2).pictures
    assert saved[0].pictures == pictures[5] != pictures[6]


def test_overrides_may_stand_before_the_flag(run, tmp_path):
    out = run(*DATA, "--batches", "--num", "1", "--out", "a.png").out
    assert out == "1 picture in a.png\n"
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_batch_beyond_the_epoch_is_wrong(run, tmp_path):
    err = run("--batches", *DATA, "--stage", "val", "--batch", "9", code=2).err
    assert "--batch 9 is beyond the last batch of stage val in epoch 0" in err
    assert not list(tmp_path.glob("show*"))
    assert "the config has no set for this stage" in run("--batches", *DATA, "--stage", "test", code=2).err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--epoch", "-1"], "--epoch -1 must be at least 0"), (["datamodule.batch_siz=3"], "batch_size")],
)
def test_wrong_configs_and_numbers_are_refused_by_name(run, words, message):
    assert message in run("--batches", *DATA, *words, code=2).err
