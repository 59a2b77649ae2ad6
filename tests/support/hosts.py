"""Hosts of one run on this machine: an agent of torchrun each, or a task of Slurm, forked or as programs."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import socket
import traceback
from pathlib import Path

from lightning.pytorch import Callback
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.support.small_app import run_app

HOSTS = [
    "experiment=shapes_finish",
    "dataset.num_images={train: 8, val: 4, test: 4}",
    "dataset.image_size=48",
    "datamodule.drop_last=true",
    "trainer=ddp_hosts",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "trainer.enable_progress_bar=false",
    "+trainer.enable_model_summary=false",
    "workers=inline",
    "logger=none",
    "callbacks=[model_checkpoint,last_checkpoint]",
    "+callbacks.recorder._target_=tests.support.hosts.StreamRecorder",
]


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def slurm_variables(number: int, num_hosts: int, port: int) -> dict[str, str]:
    """Return the variables that srun sets for a task of a job with one task on each host."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": str(num_hosts),
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": str(num_hosts),
        "SLURM_NODELIST": "localhost" if num_hosts == 1 else f"localhost,other[1-{num_hosts - 1}]",
        "SLURM_PROCID": str(number),
        "SLURM_NODEID": str(number),
        "SLURM_LOCALID": "0",
        "SLURM_CPUS_PER_TASK": "1",
        "MASTER_PORT": str(port),
    }


def on_hosts(folders, work, *arguments, launcher="torchrun"):
    """Call ``work(*arguments)`` on forked hosts, each in its folder, and return what each rank returned, by rank.

    Args:
        folders: The folder of each host.
        work: Function that returns a value for JSON; a host whose function raises SystemExit ends with that code.
        *arguments: Arguments of ``work``.
        launcher: ``"torchrun"``: agents with a rendezvous start the ranks; ``"srun"``: the ranks have its variables.
    """
    context = multiprocessing.get_context("fork")
    port = free_port()
    start = {"torchrun": _run_agent, "srun": _run_task}[launcher]
    hosts = [(number, len(folders), port, folder, work, arguments) for number, folder in enumerate(folders)]
    processes = [context.Process(target=start, args=host) for host in hosts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    return [result for _, result in sorted(results, key=lambda record: record[0])]


def _run_agent(number, num_hosts, port, folder, work, arguments):
    config = LaunchConfig(
        min_nodes=num_hosts,
        max_nodes=num_hosts,
        nproc_per_node=1,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"is_host": number == 0},
        local_addr="127.0.0.1",
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,
    )
    logging.disable()  # the agent reports a rank that is meant to fail
    with contextlib.suppress(ChildFailedError):
        elastic_launch(config, _run)(folder, work, arguments)


def _run_task(number, num_hosts, port, folder, work, arguments):
    os.environ.update(slurm_variables(number, num_hosts, port))
    _run(folder, work, arguments)


def _run(folder, work, arguments):
    folder.mkdir(parents=True, exist_ok=True)
    rank = int(os.environ["RANK"] if "RANK" in os.environ else os.environ["SLURM_PROCID"])
    with contextlib.chdir(folder):
        try:
            result = work(*arguments)
        except Exception:
            result = traceback.format_exc()
        (folder / "result.json").write_text(json.dumps([rank, result]))


class StreamRecorder(Callback):
    """Callback that writes each sample of training, its image and the sum of its pixels, to ``stream.jsonl``."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        sums = batch.images.double().sum(dim=(1, 2, 3)).tolist()
        samples = list(zip(map(int, batch.image_ids), sums, strict=True))
        with Path("stream.jsonl").open("a") as file:
            file.write(json.dumps(samples) + "\n")


def train(words):
    """Run ``lit-loader train``; return its exit code, its output, and the samples of each batch."""
    Path("stream.jsonl").unlink(missing_ok=True)
    result = run_app(".", "train", *words)
    lines = Path("stream.jsonl").read_text().splitlines() if Path("stream.jsonl").exists() else []
    return {"code": result.code, "out": result.out, "err": result.err, "batches": [json.loads(line) for line in lines]}
