"""Checkpoint files that survive a crash or a full disk."""

from __future__ import annotations

import contextlib
import glob
import io
import logging
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import Trainer

from lit_loader.foundation.files import new_file

__all__ = ["DurableCheckpointIO", "use_durable_checkpoints"]

_log = logging.getLogger(__name__)


class DurableCheckpointIO(TorchCheckpointIO):
    """Lightning's plugin for checkpoint files, which replaces a file only by one that is complete on the disk.

    A save writes a hidden file in the checkpoint's own folder, syncs it and renames it. Whenever the process or the
    machine stops, the previous checkpoint or the new one is there. A save that fails (the disk is full, the file system
    became read-only) is logged; the previous file remains and training continues.

    NOTE Lightning's plugin (2.6 with fsspec 2026.9) writes to the temporary folder and moves the file. Between two
    file systems that move copies into the checkpoint itself, which is empty or half written until the copy ends.

    Runs in: the main process of rank 0.

    Attributes:
        failures: By path, the reason why its last save failed; a save that succeeds removes it.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self._saved_steps: dict[str, int] = {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Replace a checkpoint file, or log why the previous one stays; a URL is left to Lightning's plugin."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        key = str(path)
        step = checkpoint.get("global_step", 0)
        buffer = io.BytesIO()  # an error of serialisation must not look like one of the disk
        torch.save(checkpoint, buffer)
        try:
            _replace_file(Path(path), buffer.getbuffer())
        except OSError as error:
            previous = "there is none yet"
            if Path(path).exists():
                saved_step = self._saved_steps.get(key)
                previous = (
                    "the previous file remains"
                    if saved_step is None
                    else f"the file of step {saved_step} remains"
                )
            self.failures[key] = f"{path} of step {step} could not be written ({error}); {previous}"
            _log.warning("%s. Training continues; free space for the next save.", self.failures[key])
            return
        self._saved_steps[key] = step
        self.failures.pop(key, None)


def use_durable_checkpoints(trainer: Trainer) -> DurableCheckpointIO | None:
    """Give a trainer `DurableCheckpointIO` where it would use Lightning's default.

    Returns:
        The plugin, or None if the trainer has another one, which a config or the strategy chose.
    """
    if type(trainer.strategy.checkpoint_io) is not TorchCheckpointIO:
        return None
    plugin = DurableCheckpointIO()
    trainer.strategy.checkpoint_io = plugin
    return plugin


def _replace_file(path: Path, content: memoryview) -> None:
    """Replace a file by one that is synced to the disk before it gets the name.

    Raises:
        OSError: If it cannot be written; the previous file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{glob.escape(path.stem)}.*.tmp"):
        stale.unlink(missing_ok=True)  # a save that SIGKILL ended left it, as large as a checkpoint
    with new_file(path, mode=0o666) as file:  # the umask applies, as it does to Lightning's files
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # without it a power cut may leave the new name on an empty file
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(
            OSError
        ):  # some network file systems refuse; the file is in place either way
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)  # the rename itself
            finally:
                os.close(descriptor)
