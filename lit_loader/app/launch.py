"""The ranks that torchrun or srun started for one command, on one or several hosts.

NOTE [One run of many ranks]
    Hydra names a run's folder by the time, which differs between processes. So rank 0 chooses the name before Hydra
    starts, and the others read it from the key-value store at ``MASTER_ADDR:MASTER_PORT``, where they later find each
    other for the process group. This needs no shared disk. torchrun's agent serves the store, or else rank 0 does in
    its own process, where torch uses the same server again for the process group.

    Until there is a process group, a rank that ends with an error would leave the others waiting for half an hour. So
    it writes its error into the store, and the others end with it. Tasks of submitit run a job without the command
    line, so each job connects to the store unless the command has.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from lit_loader.app.composition import ConfigError
from lit_loader.app.composition.hints import explain
from lit_loader.errors import LitLoaderError
from lit_loader.foundation.escaping import printable, shell_command
from lit_loader.foundation.files import new_file

__all__ = [
    "Launch",
    "check_trainer",
    "checkpoint_to_continue",
    "connected",
    "named_run",
    "read_launch",
    "wait_for_ranks",
]

_RUN_VARIABLE: Final = "LIT_LOADER_RUN"
_LOG_VARIABLE: Final = "LIT_LOADER_LOG_SUFFIX"
# Variables of launchers that Lightning knows and this module does not.
_OTHER_LAUNCHERS: Final = ("LSB_JOBID", "NODE_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Rank 0 writes the name after it has imported torch, which takes minutes from a cold network disk.
_NAME_TIMEOUT_S: Final = 10 * 60
_ANSWER_TIMEOUT: Final = timedelta(seconds=60)
# A process group waits as long for a missing rank.
_READY_TIMEOUT_S: Final = 30 * 60
_MAX_MESSAGE: Final = 2000  # characters of the error of another rank
_MAX_RANKS: Final = 8  # that a message names
_RECORD: Final = "named_run.json"  # overrides of the first start, in the folder of a named run

# The connection within `connected`, until all ranks are ready for the process group.
_store: ContextVar[Any] = ContextVar("store", default=None)
_connections = count()


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
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
        rank, world_size, ranks_per_host, num_hosts = (_number(environ, name) for name in names)
        launch = Launch(
            launcher="torchrun", rank=rank, world_size=world_size, ranks_per_host=ranks_per_host, num_hosts=num_hosts
        )
        _check_restarts(environ)
        remedy = "give torchrun the same --nproc-per-node on each host"
    else:
        if _number(environ, "SLURM_NTASKS", "1") == 1 or not _is_task(environ):
            return None
        launch = Launch(
            launcher="srun",
            rank=_number(environ, "SLURM_PROCID"),
            world_size=_number(environ, "SLURM_NTASKS"),
            ranks_per_host=_number(environ, "SLURM_NTASKS_PER_NODE"),
            num_hosts=_number(environ, "SLURM_NNODES", "1"),
        )
        remedy = "give srun the --nodes and --ntasks-per-node of the job"
    if launch.num_hosts * launch.ranks_per_host != launch.world_size:
        raise ConfigError(
            f"{launch.launcher} started {launch.world_size} processes on {launch.num_hosts} hosts, "
            f"{launch.ranks_per_host} of them on {socket.gethostname()}; expected as many on each host: {remedy}"
        )
    return launch


def _number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    """Return a number that a launcher has set.

    Raises:
        ConfigError: If the variable is missing or no number.
    """
    text = environ.get(name, default)
    if not (text.isascii() and text.isdigit()):
        problem = f"{name}={text!r} is not a whole number" if name in environ else f"{name} is not set"
        raise ConfigError(
            f"{problem}, but other variables of torchrun or Slurm are; start the command with torchrun or srun, or "
            "unset TORCHELASTIC_RUN_ID and SLURM_NTASKS"
        )
    return int(text)


def _is_task(environ: Mapping[str, str]) -> bool:
    """Return True if this process is one of several tasks of Slurm, and False in the shell of an allocation.

    Raises:
        ConfigError: If Lightning could not run these tasks.
    """
    num_tasks = environ["SLURM_NTASKS"]
    is_step = "SLURM_STEP_ID" in environ
    # Lightning does not treat processes in jobs of these names as tasks of Slurm.
    if environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        # srun --pty starts one shell.
        if is_step and "SLURM_PTY_PORT" not in environ:
            raise ConfigError(
                f"srun started {num_tasks} tasks in a job of the name {environ['SLURM_JOB_NAME']}; each would "
                "train alone; write `srun --job-name=train lit-loader ...`, or request --ntasks=1"
            )
        return False
    # The shell of a batch script has the variables of task 0.
    if not is_step:
        raise ConfigError(
            f"SLURM_NTASKS={num_tasks}, but srun did not start this process, which would wait for the others; write "
            "`srun lit-loader ...` in the batch script, or request --ntasks=1"
        )
    if "SLURM_NTASKS_PER_NODE" not in environ:
        raise ConfigError(
            f"SLURM_NTASKS={num_tasks} without SLURM_NTASKS_PER_NODE; replace --ntasks of the job by --nodes and "
            "--ntasks-per-node"
        )
    return True


def _check_restarts(environ: Mapping[str, str]) -> None:
    """Refuse restarts by torchrun that would fail or begin another run.

    Raises:
        ConfigError: If ``--max-restarts`` is set, and a variable is missing.
    """
    if _number(environ, "TORCHELASTIC_MAX_RESTARTS", "0") == 0:
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
                "hosts; start it with torchrun or srun on each host (docs/scale/hosts.md), or choose trainer=ddp for "
                "one host"
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

    The variable ``LIT_LOADER_RUN`` of rank 0 takes precedence. Includes `connected`.

    Raises:
        ConfigError: If ``LIT_LOADER_RUN`` does not name a folder, or differs between ranks.
        LitLoaderError: If rank 0 cannot be reached.
    """
    with connected(launch):
        _check_name(os.environ)
        if launch is None:
            yield
            return
        variables = {_RUN_VARIABLE: _shared_name(launch, _store.get())}
        if launch.rank > 0:
            # Several hosts that append to one file of a network disk overwrite each other's lines.
            variables[_LOG_VARIABLE] = f"_rank{launch.rank}"
        previous = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in previous.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextmanager
def connected(launch: Launch | None) -> Iterator[None]:
    """Hold a connection to the store, and tell ranks that wait in `wait_for_ranks` why this one ends.

    Within another such block this does nothing.

    Raises:
        ConfigError: If torchrun has started ranks again in the same store.
        LitLoaderError: If rank 0 cannot be reached.
    """
    if launch is None or _store.get() is not None:
        yield
        return
    # Rank 0 may serve the store, so it holds the connection until Lightning's process group has its own.
    store = _open_store(launch)
    token = _store.set(store)
    try:
        if store.add(f"starts/{launch.rank}", 1) > 1:
            raise ConfigError(
                f"torchrun has started rank {launch.rank} again in the same store, which has the addresses of "
                "earlier ranks; give torchrun one number of hosts, --nnodes=N and not a range, or set "
                f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 {_RUN_VARIABLE}=NAME in its environment on each host"
            )
        store.set(f"host/{launch.rank}", socket.gethostname())
        yield
    except BaseException as error:
        _report_failure(launch, explain(error) if isinstance(error, Exception) else type(error).__name__)
        raise
    finally:
        _store.reset(token)


def _check_name(environ: Mapping[str, str]) -> None:
    """Refuse a name of a run that is not the name of one folder.

    Raises:
        ConfigError: If ``LIT_LOADER_RUN`` is empty or a path.
    """
    name = environ.get(_RUN_VARIABLE)
    if name is not None and (not name.strip(". ") or "/" in name):
        raise ConfigError(f"{_RUN_VARIABLE}={name!r} is not the name of a folder; unset it, or set it to a name")


def _shared_name(launch: Launch, store: Any) -> str:
    """Return the name of the run, which rank 0 chooses.

    Raises:
        ConfigError: If this rank has another name.
        LitLoaderError: If rank 0 has failed, or gives no name.
    """
    name = os.environ.get(_RUN_VARIABLE)
    if launch.rank == 0:
        name = name or datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
        store.set("name", name)
        return name
    if not _wait(launch, store, lambda: store.check(["name"]), _NAME_TIMEOUT_S):
        raise _lost_store(launch, TimeoutError(f"it has given the run no name in {_NAME_TIMEOUT_S // 60} min"))
    shared = str(store.get("name").decode())
    if name not in (None, shared):
        raise ConfigError(
            f"{_RUN_VARIABLE}={name} on {socket.gethostname()}, and the run of rank 0 on {_host(store, 0)} is "
            f"{shared}; set it to the same name on each host"
        )
    return shared


def _report_failure(launch: Launch, message: str) -> None:
    store = _store.get()
    # In a process group the others notice an end without this.
    if store is None or launch.world_size == 1:
        return
    text = f"rank {launch.rank} on {socket.gethostname()} ended: {message[:_MAX_MESSAGE]}"
    # If rank 0 has ended, this is an error, and the other ranks notice it as well.
    with suppress(RuntimeError):
        # Only the first failure, because later ones may follow from it.
        store.compare_set("failure", "", text)
        if launch.rank == 0:
            # The store may be in this process; the others look every 0.1 s while they wait.
            time.sleep(1)


def wait_for_ranks(launch: Launch) -> None:
    """Wait until all ranks are ready for the process group, or end with the error of one that is not.

    Needs `connected`.

    Raises:
        LitLoaderError: If another rank has failed, or is not ready after half an hour.
    """
    store: Any = _store.get()
    try:
        store.set(f"ready/{launch.rank}", "")
        store.add("ready", 1)
        if _wait(launch, store, lambda: store.add("ready", 0) >= launch.world_size, _READY_TIMEOUT_S):
            # From here on, the process group breaks if a rank ends.
            _store.set(None)
            return
        missing = [rank for rank in range(launch.world_size) if not store.check([f"ready/{rank}"])]
        names = [f"rank {rank} on {_host(store, rank)}" for rank in missing[:_MAX_RANKS]]
    except RuntimeError as error:
        raise _lost_store(launch, error) from error
    raise LitLoaderError(
        f"{len(missing)} of {launch.world_size} ranks have not read their data after {_READY_TIMEOUT_S // 60} min: "
        f"{', '.join(names)}",
        remedy=f"look at the output of {launch.launcher} on their hosts",
    )


def _wait(launch: Launch, store: Any, is_done: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until a condition holds, and return False if it does not in time.

    Raises:
        LitLoaderError: If another rank has failed, or rank 0 has ended.
    """
    deadline = time.monotonic() + timeout_s
    try:
        while not is_done():
            if store.check(["failure"]):
                raise LitLoaderError(printable(store.get("failure").decode(errors="replace")))
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
    except RuntimeError as error:
        raise _lost_store(launch, error) from error
    return True


def _host(store: Any, rank: int) -> str:
    name = f"host/{rank}"
    return printable(store.get(name).decode(errors="replace")) if store.check([name]) else "an unknown host"


def checkpoint_to_continue(folder: Path, words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the last checkpoint of a run that is started again under the same ``LIT_LOADER_RUN``, or None.

    The first start writes its overrides into the folder, and another one continues only with the same.

    Args:
        folder: Folder of the run.
        words: The overrides, without credentials.
        environ: Environment variables.

    Raises:
        ConfigError: If the folder has a run with other overrides.
        OSError: If the overrides cannot be written.
    """
    name = environ.get(_RUN_VARIABLE)
    if not name or folder.name != name:
        return None
    record = folder / _RECORD
    path = folder / "checkpoints" / "last.ckpt"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(record, mode=0o666) as file:
            file.write(json.dumps(list(words)).encode())
        return None
    try:
        stored = [str(word) for word in json.loads(record.read_bytes())]
    except (OSError, ValueError, TypeError, RecursionError):
        stored = ["unknown overrides"]
    if stored != list(words):
        earlier = shell_command(word for word in stored if word not in words) or "the same in another order"
        later = shell_command(word for word in words if word not in stored) or "none of these"
        raise ConfigError(
            f"{_RUN_VARIABLE}={name} continues the run in {folder}, which was started with other overrides: {earlier}, "
            f"and now {later}; unset {_RUN_VARIABLE} or choose another name for a new run, or continue that run with "
            f"resume_in_place=true ckpt_path={path}"
        )
    return str(path)


def _open_store(launch: Launch) -> Any:
    """Return a client of the store, see NOTE [One run of many ranks].

    Raises:
        LitLoaderError: If the host of rank 0 cannot be reached.
    """
    # These take seconds, which a process without a launcher should not wait for.
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if launch.launcher == "srun":
        # Sets MASTER_ADDR and MASTER_PORT as Lightning does for the process group.
        environment = SLURMEnvironment()
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
    try:
        timeout = timedelta(seconds=_NAME_TIMEOUT_S)
        store, _, _ = next(rendezvous("env://", launch.rank, launch.world_size, timeout=timeout))
    except (RuntimeError, ValueError) as error:
        raise _lost_store(launch, error) from error
    store.set_timeout(_ANSWER_TIMEOUT)
    # A script may run several commands one after the other.
    return PrefixStore(f"lit_loader/{next(_connections)}", store)


def _lost_store(launch: Launch, error: Exception) -> LitLoaderError:
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return LitLoaderError(
        f"rank {launch.rank} on {socket.gethostname()} cannot reach rank 0 at {address}: {str(error).splitlines()[0]}",
        remedy="look at the output of the first host, or set MASTER_ADDR and MASTER_PORT to an address of it that the "
        "others reach",
    )
