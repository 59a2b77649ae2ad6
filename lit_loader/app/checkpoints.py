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
    """Checkpoint plugin that replaces a file only with one that is complete on the disk.

    A save writes a hidden file in the checkpoint's own folder, syncs it and renames it. Whenever the process or the
    machine stops, either the previous checkpoint or the new one exists. A failed save (the disk is full, the file
    system became read-only) is logged; the previous file remains and training continues.

    NOTE Lightning's plugin (2.6 with fsspec 2026.9) writes to the temporary folder and moves the file. Between two
    file systems, the move copies into the checkpoint itself, which is empty or half written until the copy ends.

    Runs in: the main process of rank 0.

    Attributes:
        failures: The reason of the last failed save, by path; a successful save removes it.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Replace a checkpoint file, or log why the previous one remains; leave a URL to Lightning's plugin."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        key = str(path)
        # Serialise to memory first: an error of serialisation must not be reported as a full disk.
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        try:
            _replace_file(Path(path), buffer.getbuffer())
        except OSError as error:
            previous = "the previous file remains" if Path(path).exists() else "there is none yet"
            self.failures[key] = (
                f"{path} of step {checkpoint.get('global_step', 0)} could not be written ({error}); {previous}"
            )
            _log.warning("%s. Training continues; free space for the next save.", self.failures[key])
            return
        self.failures.pop(key, None)


def use_durable_checkpoints(trainer: Trainer) -> DurableCheckpointIO | None:
    """Give a trainer `DurableCheckpointIO` instead of Lightning's default plugin.

    Returns:
        The plugin, or None if the config or the strategy chose another plugin.
    """
    if type(trainer.strategy.checkpoint_io) is not TorchCheckpointIO:
        return None
    plugin = DurableCheckpointIO()
    trainer.strategy.checkpoint_io = plugin
    return plugin


def _replace_file(path: Path, content: memoryview) -> None:
    """Replace a file with one that is synced to the disk before it gets the name.

    Raises:
        OSError: If the file cannot be written; the previous file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A save that SIGKILL interrupted leaves its hidden file, which is as large as a checkpoint.
    for stale in path.parent.glob(f".{glob.escape(path.stem)}.*.tmp"):
        stale.unlink(missing_ok=True)
    # With this mode the umask applies, as it does to Lightning's files.
    with new_file(path, mode=0o666) as file:
        file.write(content)
        file.flush()
        # Without a sync, a power cut may leave the new name on an empty file.
        os.fsync(file.fileno())
    if hasattr(os, "O_DIRECTORY"):
        # Some network file systems cannot sync a folder; the file is in place anyway.
        with contextlib.suppress(OSError):
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)  # the rename itself
            finally:
                os.close(descriptor)
