"""Checkpoint files that survive a crash or a full disk, and reach hosts that do not share a disk."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import Trainer

from lit_loader.foundation.files import new_file

__all__ = ["DurableCheckpointIO", "use_durable_checkpoints"]

_log = logging.getLogger(__name__)

# The end of a checkpoint, a zip file, is a directory with a checksum of each tensor.
_END_BYTES = 1 << 16


class DurableCheckpointIO(TorchCheckpointIO):
    """Checkpoint plugin that replaces a file only with one that is complete on the disk.

    A save writes a hidden file in the checkpoint's own folder, syncs it and renames it. Whenever the process or the
    machine stops, either the previous checkpoint or the new one exists. A failed save (the disk is full, the file
    system became read-only) is logged; the previous file remains and training continues.

    NOTE Lightning's plugin (2.6 with fsspec 2026.9) writes to the temporary folder and moves the file. Between two
    file systems, the move copies into the checkpoint itself, which is empty or half written until the copy ends.

    Runs in: the main process of each rank; only rank 0 saves.

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

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, location: storage, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint on all ranks; a rank whose host has no such file, or a different one, receives rank 0's.

        A collective call. Each of these ranks needs memory for the file.

        Raises:
            FileNotFoundError: If rank 0 has no such file.
        """
        is_alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        if is_alone or "://" in str(path):
            return super().load_checkpoint(path, map_location, weights_only)
        identities: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(identities, _file_identity(Path(path)))
        if identities[0] is None:
            raise FileNotFoundError(errno.ENOENT, "rank 0 has no checkpoint of this name", str(path))
        if len(set(identities)) == 1:
            return super().load_checkpoint(path, map_location, weights_only)
        content: list[Any] = [Path(path).read_bytes() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(content, src=0)
        if identities[dist.get_rank()] == identities[0]:
            return super().load_checkpoint(path, map_location, weights_only)
        # Not written to this host's disk, where the folder may belong to another run.
        checkpoint: dict[str, Any] = torch.load(io.BytesIO(content[0]), map_location, weights_only=weights_only)
        return checkpoint


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


def _file_identity(path: Path) -> tuple[int, str] | None:
    """Return the size of a file and a hash of its end, or None if it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END_BYTES))
            return size, hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


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
