"""The ranks that torchrun or srun started for one command, on one or several hosts.

NOTE [One run of many ranks]
    Hydra names a run's folder by the time, which differs between processes. So rank 0 chooses the name before Hydra
    starts, and the others read it from the key-value store at ``MASTER_ADDR:MASTER_PORT``, where they later find each
    other for the process group. This needs no shared disk. torchrun's agent serves the store, or else rank 0 does in
    its own process, where torch uses the same server again for the process group.

    Until there is a process group, a rank that ends with an error would leave the others waiting for half an hour. So
    it writes its error into the store, and the others end with it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from lit_loader.app.composition import ConfigError
from lit_loader.errors import LitLoaderError
from lit_loader.foundation.escaping import printable

__all__ = [
    "Launch",
    "check_trainer",
    "checkpoint_to_continue",
    "named_run",
    "read_launch",
    "report_failure",
    "wait_for_ranks",
]

_RUN_VARIABLE: Final = "LIT_LOADER_RUN"
_LOG_VARIABLE: Final = "LIT_LOADER_LOG_SUFFIX"
# Variables of launchers that Lightning knows and this module does not.
_OTHER_LAUNCHERS: Final = ("LSB_JOBID", "NODE_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Rank 0 writes the name after it has imported torch, which takes minutes from a cold network disk.
_NAME_TIMEOUT: Final = timedelta(minutes=10)
# A process group waits as long for a missing rank.
_READY_TIMEOUT_S: Final = 30 * 60
_MAX_MESSAGE: Final = 2000  # characters of the error of another rank

# Whether other ranks may be waiting for this one in `wait_for_ranks`.
_is_awaited: ContextVar[bool] = ContextVar("is_awaited", default=False)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The position of this process among the ranks of one command.

    Attributes:
        launcher: The program that started the ranks.
        rank: Number of this rank, from 0.
        world_size: Number of all ranks.
        ranks_per_host: Number of ranks on each host.
        num_hosts: Number of hosts.
    """

    launcher: Literal["torchrun", "srun"]
    rank: int
    world_size: int
    ranks_per_host: int
    num_hosts: int


def read_launch(environ: Mapping[str, str]) -> Launch | None:
    """Read the variables of torchrun and Slurm; torchrun's come first, since it also runs in a job of Slurm.

    Args:
        environ: Environment variables.

    Returns:
        The position of this process, or None if neither program started it as one of several ranks.

    Raises:
        ConfigError: If the ranks could not form a process group.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        launch = Launch(
            launcher="torchrun",
            rank=int(environ["RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            ranks_per_host=int(environ["LOCAL_WORLD_SIZE"]),
            num_hosts=int(environ["GROUP_WORLD_SIZE"]),
        )
        _check_restarts(environ)
        remedy = "give torchrun the same --nproc-per-node on each host"
    else:
        num_tasks = int(environ.get("SLURM_NTASKS", "1"))
        # Lightning does not treat these as tasks of Slurm, either.
        is_interactive = environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
        if num_tasks == 1 or is_interactive:
            return None
        _check_task(environ)
        launch = Launch(
            launcher="srun",
            rank=int(environ["SLURM_PROCID"]),
            world_size=num_tasks,
            ranks_per_host=int(environ["SLURM_NTASKS_PER_NODE"]),
            num_hosts=int(environ.get("SLURM_NNODES", "1")),
        )
        remedy = "give srun the --nodes and --ntasks-per-node of the job"
    if launch.num_hosts * launch.ranks_per_host != launch.world_size:
        raise ConfigError(
            f"{launch.launcher} started {launch.world_size} processes on {launch.num_hosts} hosts, "
            f"{launch.ranks_per_host} of them on {socket.gethostname()}; expected as many on each host: {remedy}"
        )
    return launch


def _check_task(environ: Mapping[str, str]) -> None:
    """Refuse a job of several tasks that Lightning cannot run.

    Raises:
        ConfigError: If srun did not start this process, or the number of tasks on each host is unknown.
    """
    num_tasks = environ["SLURM_NTASKS"]
    # The shell of a batch script has the variables of task 0.
    if "SLURM_STEP_ID" not in environ:
        raise ConfigError(
            f"SLURM_NTASKS={num_tasks}, but srun did not start this process, which would wait for the others; write "
            "`srun lit-loader ...` in the batch script, or request --ntasks=1"
        )
    if "SLURM_NTASKS_PER_NODE" not in environ:
        raise ConfigError(
            f"SLURM_NTASKS={num_tasks} without SLURM_NTASKS_PER_NODE; replace --ntasks of the job by --nodes and "
            "--ntasks-per-node"
        )


def _check_restarts(environ: Mapping[str, str]) -> None:
    """Refuse restarts by torchrun that would fail or begin another run.

    Raises:
        ConfigError: If ``--max-restarts`` is set, and a variable is missing.
    """
    if int(environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) == 0:
        return
    assignments = []
    # The agent keeps its store, and restarted ranks would read the addresses of their predecessors (torch 2.14).
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        assignments.append("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    if _RUN_VARIABLE not in environ:
        assignments.append(f"{_RUN_VARIABLE}=NAME")
    if assignments:
        raise ConfigError(
            f"torchrun --max-restarts={environ['TORCHELASTIC_MAX_RESTARTS']}: restarted ranks could not continue this "
            f"run; set {' '.join(assignments)} in the environment of torchrun, the same on each host and new for each "
            "run, or use --max-restarts=0"
        )


def check_trainer(launch: Launch | None, settings: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Refuse a trainer with other numbers of hosts or devices than the launcher: its ranks would wait for each other.

    Args:
        launch: The position of this process, or None without a launcher.
        settings: The arguments of the trainer, such as ``num_nodes`` and ``devices``.
        environ: Environment variables.

    Raises:
        ConfigError: If the numbers differ, or several hosts have no launcher.
    """
    num_hosts = settings.get("num_nodes", 1)
    devices = settings.get("devices", "auto")
    if launch is None:
        if num_hosts > 1 and not any(name in environ for name in _OTHER_LAUNCHERS):
            raise ConfigError(
                f"trainer.num_nodes={num_hosts}, but no launcher started this process, so it would wait for the other "
                "hosts; start it with torchrun or srun on each host (docs/hosts.md), or choose trainer=ddp for one host"
            )
        return
    # Other spellings of devices, such as "auto" and [0, 1], are compared after Lightning has counted them.
    num_devices = devices if type(devices) is int else launch.ranks_per_host
    if (num_hosts, num_devices) != (launch.num_hosts, launch.ranks_per_host):
        raise ConfigError(
            f"trainer.num_nodes={num_hosts} and trainer.devices={devices}, but {launch.launcher} started "
            f"{launch.world_size} processes: {launch.ranks_per_host} on each of {launch.num_hosts} hosts; choose "
            "trainer=ddp_hosts, which takes both numbers from the launcher"
        )


@contextmanager
def named_run(launch: Launch | None) -> Iterator[None]:
    """Give the folder of a run the same name on all ranks, and each rank a log file; the shipped configs use both.

    The variable ``LIT_LOADER_RUN`` takes precedence.

    Raises:
        LitLoaderError: If rank 0 cannot be reached.
    """
    if launch is None:
        yield
        return
    store = _open_store(launch, _NAME_TIMEOUT)
    variables = {_RUN_VARIABLE: os.environ.get(_RUN_VARIABLE) or _shared_name(launch, store)}
    if launch.rank > 0:
        # Several hosts that append to one file of a network disk overwrite each other's lines.
        variables[_LOG_VARIABLE] = f"_rank{launch.rank}"
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    _is_awaited.set(launch.world_size > 1)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        # Until here rank 0 may be the one that serves the store.
        del store


def _shared_name(launch: Launch, store: Any) -> str:
    if launch.rank == 0:
        store.set("name", datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))
    try:
        return str(store.get("name").decode())
    except RuntimeError as error:
        raise _lost_store(launch, error) from error


def report_failure(launch: Launch | None, message: str) -> None:
    """Tell ranks that wait in `wait_for_ranks` why this one ends; in a process group they notice it without this."""
    # The host of the store may be the one that died, and connecting to it would take a while.
    if launch is None or not _is_awaited.get():
        return
    text = f"rank {launch.rank} on {socket.gethostname()} ended: {message[:_MAX_MESSAGE]}"
    try:
        store = _open_store(launch, timedelta(seconds=10))
        # Only the first failure, because later ones may follow from it.
        store.compare_set("failure", "", text)
        if launch.rank == 0:
            # The store may be in this process; the others look every 0.1 s while they wait.
            time.sleep(1)
    except (LitLoaderError, RuntimeError):
        # Rank 0 has ended, and the other ranks notice that.
        return


def wait_for_ranks(launch: Launch) -> None:
    """Wait until all ranks are ready for the process group, or end with the error of one that is not.

    Raises:
        LitLoaderError: If another rank has failed, or is not ready after half an hour.
    """
    deadline = time.monotonic() + _READY_TIMEOUT_S
    store = _open_store(launch, timedelta(seconds=60))
    try:
        num_ready = store.add("ready", 1)
        while num_ready < launch.world_size:
            if store.check(["failure"]):
                raise LitLoaderError(printable(store.get("failure").decode(errors="replace")))
            if time.monotonic() > deadline:
                raise LitLoaderError(
                    f"only {num_ready} of {launch.world_size} ranks have read their data after "
                    f"{_READY_TIMEOUT_S // 60} min",
                    remedy=f"look at the output of {launch.launcher} on the other hosts",
                )
            time.sleep(0.1)
            num_ready = store.add("ready", 0)
        _is_awaited.set(False)
    except RuntimeError as error:
        raise _lost_store(launch, error) from error


def checkpoint_to_continue(folder: Path, environ: Mapping[str, str]) -> str | None:
    """Return the last checkpoint of a run that is started again under the same ``LIT_LOADER_RUN``, or None."""
    path = folder / "checkpoints" / "last.ckpt"
    name = environ.get(_RUN_VARIABLE)
    is_named = bool(name) and folder.as_posix().endswith(f"/{name}")
    return str(path) if is_named and path.is_file() else None


def _open_store(launch: Launch, timeout: timedelta) -> Any:
    """Return a client of the store, see NOTE [One run of many ranks].

    Raises:
        LitLoaderError: If the host of rank 0 cannot be reached.
    """
    # These take seconds, which a process without a launcher should not wait for.
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined] # without `__all__`

    if launch.launcher == "srun":
        # Sets MASTER_ADDR and MASTER_PORT as Lightning does for the process group.
        environment = SLURMEnvironment()
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
    try:
        store, _, _ = next(rendezvous("env://", launch.rank, launch.world_size, timeout=timeout))
    except (RuntimeError, ValueError) as error:
        raise _lost_store(launch, error) from error
    return PrefixStore("lit_loader", store)


def _lost_store(launch: Launch, error: Exception) -> LitLoaderError:
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return LitLoaderError(
        f"rank {launch.rank} on {socket.gethostname()} cannot reach rank 0 at {address}: {str(error).splitlines()[0]}",
        remedy="look at the output of the first host, or set MASTER_ADDR and MASTER_PORT to an address of it that the "
        "others reach",
    )
