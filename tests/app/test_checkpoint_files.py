"""Checkpoints stay whole when a save is killed or the disk is full, and a folder that cannot be written is one line."""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import Trainer

from lit_loader.app.checkpoints import DurableCheckpointIO, use_durable_checkpoints
from lit_loader.app.training import disk_errors
from lit_loader.errors import LitLoaderError

SMALL_STATE = {"global_step": 1, "weights": torch.zeros(10)}
LARGE_STATE = {"global_step": 2, "weights": torch.zeros(100_000)}


@contextmanager
def max_file_bytes(size):
    """Let no file grow beyond a size, as on a full disk: a larger write raises an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoints" / "last.ckpt"
    DurableCheckpointIO().save_checkpoint(SMALL_STATE, path)
    return path


def saved_step(path):
    return torch.load(path, weights_only=True)["global_step"]


def test_sigkill_during_a_save_leaves_the_previous_checkpoint(path):
    child = os.fork()
    if child == 0:
        # Kill the child when the new file is written and not yet renamed.
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        DurableCheckpointIO().save_checkpoint(LARGE_STATE, path)
        os.abort()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert saved_step(path) == 1
    assert len(list(path.parent.iterdir())) == 2
    DurableCheckpointIO().save_checkpoint(LARGE_STATE, path)
    assert saved_step(path) == 2
    assert list(path.parent.iterdir()) == [path]


def test_full_disk_keeps_the_previous_checkpoint_and_does_not_end_training(path, caplog):
    files = DurableCheckpointIO()
    files.save_checkpoint(SMALL_STATE, path)
    with max_file_bytes(10_000):
        files.save_checkpoint(LARGE_STATE, path)
    assert saved_step(path) == 1
    assert list(path.parent.iterdir()) == [path]
    assert (
        f"{path} of step 2 could not be written ([Errno 27] File too large); the previous file remains" in caplog.text
    )
    files.save_checkpoint(LARGE_STATE, path)
    assert saved_step(path) == 2
    assert files.failures == {}


def test_saved_files_follow_the_umask(path):
    previous_umask = os.umask(0o027)
    try:
        DurableCheckpointIO().save_checkpoint(SMALL_STATE, path)
    finally:
        os.umask(previous_umask)
    assert path.stat().st_mode & 0o777 == 0o640


def test_plugin_of_the_user_is_not_replaced():
    class CustomIO(TorchCheckpointIO):
        pass

    assert use_durable_checkpoints(Trainer(accelerator="cpu", logger=False, plugins=[CustomIO()])) is None
    trainer = Trainer(accelerator="cpu", logger=False)
    assert use_durable_checkpoints(trainer) is trainer.strategy.checkpoint_io


def test_run_on_a_full_disk_continues_and_tests_the_last_weights(app):
    with max_file_bytes(100_000):
        result = app("train", "trainer.limit_train_batches=1")
    assert "last.ckpt of step 1 could not be written ([Errno 27] File too large); there is none yet" in result.out
    assert "tested: the last weights" in result.out
    assert list((result.folder / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        (errno.ENOSPC, None, LitLoaderError),
        (errno.EROFS, "csv/metrics.csv", LitLoaderError),
        (errno.ENOSPC, "elsewhere", LitLoaderError),
        (errno.EACCES, "/data/image.png", PermissionError),
        (errno.ENOENT, "csv/metrics.csv", FileNotFoundError),
    ],
)
def test_only_errors_of_the_run_folder_are_explained(tmp_path, code, name, expected):
    path = None if name is None else str(tmp_path / name)
    with pytest.raises(expected) as caught, disk_errors(SimpleNamespace(folder=tmp_path)):
        raise OSError(code, os.strerror(code), path)
    assert (f"the run writes to {tmp_path}" in str(caught.value)) is (expected is LitLoaderError)


@pytest.mark.parametrize(("size", "reason"), [(100, "File too large"), (-1, "Not a directory")])
def test_run_folder_that_cannot_be_written_is_one_line(app, tmp_path, size, reason):
    (tmp_path / "logs").write_text("a file")
    words = [] if size == 100 else [f"hydra.run.dir={tmp_path}/logs/train"]
    with max_file_bytes(size):
        result = app("train", *words, code=1)
    (line,) = result.err.strip().splitlines()
    assert reason in line
    assert line.endswith("the run's folder cannot be created; choose another place with paths.log_dir=FOLDER")
