"""The process group of the ranks of a launcher, and the check that they have the same run before it starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from lightning.pytorch import LightningDataModule, Trainer

from lit_loader.app.composition import ConfigError
from lit_loader.app.launch import Launch, wait_for_ranks
from lit_loader.datamodules import TableDataModule
from lit_loader.datamodules.data_fingerprint import changed_sets, set_record
from lit_loader.errors import LitLoaderError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.host import count_cores

__all__ = ["join_ranks"]

_STAGES: Final = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """A rank's view of the run.

    Attributes:
        host: Name of the host.
        device: Device of the rank.
        num_cores: Number of cores that the rank may run on.
        folder: Name of the run's folder.
        sets: Records of the sets by name, see `set_record`.
    """

    host: str
    device: str
    num_cores: int
    folder: str
    sets: dict[str, Any]


def join_ranks(launch: Launch, trainer: Trainer, datamodule: LightningDataModule, folder: Path) -> list[str]:
    """Wait for all ranks, create their process group, and check that they have the same folder and data.

    Args:
        launch: The position of this process.
        trainer: The trainer.
        datamodule: The data module, with its data prepared.
        folder: Folder of the run.

    Returns:
        Lines that describe the ranks.

    Raises:
        ConfigError: If Lightning would not use all ranks together, or their folders have different names.
        LitLoaderError: If a rank has failed, or the ranks have different data.
    """
    if trainer.world_size != launch.world_size:
        raise ConfigError(
            f"{launch.launcher} started {launch.world_size} processes, and the trainer uses {trainer.world_size} "
            f"({type(trainer.strategy).__name__}): they would train alone; choose trainer=ddp_hosts"
        )
    sets: dict[str, Any] = {}
    if isinstance(datamodule, TableDataModule):
        for stage in _STAGES:
            for number, table in enumerate(datamodule.tables(stage)):
                sets[f"{stage}/{number}"] = set_record(table, label_attribute=None, mix=None)
    wait_for_ranks(launch)
    # Lightning calls it again when it starts a stage, and finds the group.
    trainer.strategy.setup_environment()
    rank = _Rank(
        host=socket.gethostname(),
        device=str(trainer.strategy.root_device),
        num_cores=count_cores(),
        folder=folder.name,
        sets=sets,
    )
    ranks: list[Any] = [None] * launch.world_size
    dist.all_gather_object(ranks, rank)
    _check_same(ranks)
    return list(_lines(launch, ranks))


def _check_same(ranks: list[_Rank]) -> None:
    """Refuse ranks with different folders or data; every rank raises the same error.

    Raises:
        ConfigError: If the names of the folders differ.
        LitLoaderError: If the data differs.
    """
    first = ranks[0]
    for number, rank in enumerate(ranks):
        where = printable(f"rank {number} on {rank.host}")
        if rank.folder != first.folder:
            raise ConfigError(
                f"the folder of the run is {first.folder} on rank 0 and {rank.folder} on {where}; give each host the "
                "same hydra.run.dir=FOLDER, without ${now:...}"
            )
        if rank.sets != first.sets:
            differences = "; ".join(changed_sets(first.sets, rank.sets, _STAGES)) or "other sets"
            raise LitLoaderError(
                f"{where} has other data than rank 0 on {first.host}: {differences}",
                remedy="copy the same files to each host",
            )


def _lines(launch: Launch, ranks: list[_Rank]) -> Iterator[str]:
    yield f"{launch.world_size} ranks on {launch.num_hosts} hosts, started by {launch.launcher}:"
    for number, rank in enumerate(ranks):
        yield printable(f"  rank {number}: {rank.host}, {rank.device}, {rank.num_cores} cores")
