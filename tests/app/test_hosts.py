"""Several hosts: ranks of torchrun and srun share the name of a run's folder, check each other and end together."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import yaml
from omegaconf import OmegaConf

from lit_loader.app.checkpoints import DurableCheckpointIO
from lit_loader.app.composition import ConfigError
from lit_loader.app.joining import _check_same, _Rank, join_ranks
from lit_loader.app.launch import (
    Launch,
    check_trainer,
    checkpoint_to_continue,
    named_run,
    read_launch,
    report_failure,
    wait_for_ranks,
)
from lit_loader.app.running import _check_sweep
from lit_loader.datamodules.data_fingerprint import set_record
from lit_loader.errors import LitLoaderError
from lit_loader.foundation.host import decide_num_workers, read_resources
from tests.support.annotation_tables import full_table
from tests.support.hosts import on_hosts, slurm_variables
from tests.support.lightning_ranks import on_ranks
from tests.support.shipped_configs import CONF

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
}
HOSTS_TRAINER = yaml.safe_load((CONF / "trainer/ddp_hosts.yaml").read_text())
SLURM = slurm_variables(2, 3, 12345)
TWO_HOSTS = Launch(launcher="torchrun", rank=0, world_size=4, ranks_per_host=2, num_hosts=2)


def test_launch_is_read_from_torchrun_or_slurm():
    launch = read_launch(TORCHRUN)
    assert launch == Launch(launcher="torchrun", rank=3, world_size=4, ranks_per_host=2, num_hosts=2)
    assert read_launch(SLURM) == Launch(launcher="srun", rank=2, world_size=3, ranks_per_host=1, num_hosts=3)
    # torchrun within a job of Slurm.
    assert read_launch({**SLURM, **TORCHRUN}) == launch
    assert read_launch({}) is None
    assert read_launch({**SLURM, "SLURM_NTASKS": "1"}) is None
    assert read_launch({**SLURM, "SLURM_JOB_NAME": "interactive"}) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "3"}, "started 3 processes on 2 hosts, 2 of them on .*: give torchrun the same"),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "2"}, "started 3 processes on 3 hosts, 2 of them on .*: give srun the"),
        ({name: SLURM[name] for name in SLURM if name != "SLURM_STEP_ID"}, "srun did not start this .*; write `srun"),
        ({name: SLURM[name] for name in SLURM if "PER_NODE" not in name}, "SLURM_NTASKS=3 without .*; replace"),
        (
            {**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            "--max-restarts=3: .*; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 LIT_LOADER_RUN=NAME in",
        ),
    ],
)
def test_launch_that_would_hang_is_refused_with_the_remedy(environ, message):
    with pytest.raises(ConfigError, match=message):
        read_launch(environ)


def test_restarts_are_possible_with_a_name_and_a_new_store():
    variables = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "False", "LIT_LOADER_RUN": "faces"}
    assert read_launch({**TORCHRUN, **variables}) is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_nodes": 3, "devices": 2}, "num_nodes=3 and .*devices=2, but torchrun started 4 .*: 2 on each of 2"),
        ({"num_nodes": 2, "devices": 1}, "trainer.devices=1, but .*choose trainer=ddp_hosts"),
        ({}, "trainer.num_nodes=1 and trainer.devices=auto"),
    ],
)
def test_trainer_with_other_numbers_than_the_launcher_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_trainer(TWO_HOSTS, settings, TORCHRUN)


def test_several_hosts_without_a_launcher_are_refused():
    with pytest.raises(ConfigError, match="num_nodes=2, but no launcher started this process"):
        check_trainer(None, {"num_nodes": 2}, {})
    check_trainer(None, {"num_nodes": 2}, {"NODE_RANK": "1"})
    check_trainer(None, {"num_nodes": 1, "devices": 4}, {})
    check_trainer(TWO_HOSTS, {"num_nodes": 2, "devices": [0, 1]}, TORCHRUN)


@pytest.mark.parametrize(
    ("variables", "num_hosts", "num_devices"),
    [(TORCHRUN, 2, 2), (SLURM, 3, 1), ({**SLURM, **TORCHRUN}, 2, 2), ({}, 2, 1)],
)
def test_trainer_takes_its_numbers_from_the_launcher(monkeypatch, variables, num_hosts, num_devices):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    trainer = OmegaConf.create({name: HOSTS_TRAINER[name] for name in ("num_nodes", "devices")})
    assert (trainer.num_nodes, trainer.devices) == (num_hosts, num_devices)


def test_trainer_of_hosts_leaves_the_precision_and_the_accelerator_to_the_user():
    assert HOSTS_TRAINER["defaults"] == ["default", "_self_"]
    assert set(HOSTS_TRAINER) == {"defaults", "strategy", "devices", "num_nodes"}


def test_task_of_slurm_has_its_own_cores():
    resources = read_resources(environ={**SLURM, "SLURM_CPUS_PER_TASK": "1"}, has_accelerator=True)
    assert (resources.ranks_on_host, resources.cores_per_rank) == (1, 1)
    assert decide_num_workers(resources)[0] == 1


def test_run_with_a_name_continues_from_its_last_checkpoint(tmp_path):
    folder = tmp_path / "faces"
    variables = {"LIT_LOADER_RUN": "faces"}
    assert checkpoint_to_continue(folder, variables) is None
    path = folder / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.touch()
    assert checkpoint_to_continue(folder, variables) == str(path)
    assert checkpoint_to_continue(folder, {}) is None
    assert checkpoint_to_continue(folder, {"LIT_LOADER_RUN": "aces"}) is None


def test_sweep_in_several_ranks_is_refused(monkeypatch):
    _check_sweep()
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"a sweep \(-m\) in 4 ranks of torchrun: each of them would run all jobs"):
        _check_sweep()
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")  # its tasks run one job together
    _check_sweep()


def meet(fails):
    """Agree on a name and join a process group, as a run does; rank 1 fails before if asked to."""
    launch = read_launch(os.environ)
    with named_run(launch):
        if fails and launch.rank == 1:
            report_failure(launch, "dataset.root=/data does not exist")
            return "failed"
        try:
            wait_for_ranks(launch)
        except LitLoaderError as error:
            return str(error)
        dist.init_process_group("gloo", rank=launch.rank, world_size=launch.world_size)
        names = [None] * launch.world_size
        dist.all_gather_object(names, os.environ["LIT_LOADER_RUN"])
        dist.destroy_process_group()
        return [*names, os.environ.get("LIT_LOADER_LOG_SUFFIX", "")]


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_all_ranks_take_the_name_that_rank_0_gives_the_run(tmp_path, launcher):
    first, second = on_hosts([tmp_path / "a", tmp_path / "b"], meet, False, launcher=launcher)
    assert first[0] == first[1] == second[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", first[0])
    assert (first[2], second[2]) == ("", "_rank1")


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_rank_that_fails_before_the_process_group_ends_the_others_with_its_error(tmp_path, launcher):
    first, _ = on_hosts([tmp_path / "a", tmp_path / "b"], meet, True, launcher=launcher)
    assert re.fullmatch(r"rank 1 on \S+ ended: dataset.root=/data does not exist", first)


def rank_of(**changes):
    rank = _Rank(host="a", device="cpu", num_cores=2, folder="run", sets={"train/0": {"counts": {"cat": 3}}})
    return replace(rank, **changes)


def test_ranks_with_another_folder_are_refused():
    _check_same([rank_of(), rank_of(host="b")])
    with pytest.raises(ConfigError, match=r"run on rank 0 and other on rank 1 on b; give .* the same hydra\.run\.dir"):
        _check_same([rank_of(), rank_of(host="b", folder="other")])


def test_ranks_with_other_data_are_refused():
    tables = [full_table(), full_table(root="/other"), full_table(labels=[1, 0, 0])]
    first, copied, second = ({"train/0": set_record(table, label_attribute=None, mix=None)} for table in tables)
    _check_same([rank_of(sets=first), rank_of(host="b", sets=copied)])
    message = "rank 1 on b has other data than rank 0 on a: train/0: labels differ.*; copy the same files to each host"
    with pytest.raises(LitLoaderError, match=message):
        _check_same([rank_of(sets=first), rank_of(host="b", sets=second)])


def load_on_ranks(folder):
    """Load a checkpoint that differs between ranks."""
    plugin = DurableCheckpointIO()
    values = []
    for name in ("everywhere", "first", "other"):
        path = folder / f"{dist.get_rank()}" / f"{name}.ckpt" if name != "everywhere" else folder / "everywhere.ckpt"
        values.append(plugin.load_checkpoint(path, weights_only=True)["step"])
    with pytest.raises(FileNotFoundError, match="rank 0 has no checkpoint"):
        plugin.load_checkpoint(folder / "none.ckpt")
    assert values == [1, 2, 3]


def test_hosts_without_the_file_load_the_checkpoint_of_rank_0(tmp_path):
    torch.save({"step": 1}, tmp_path / "everywhere.ckpt")
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
    torch.save({"step": 2}, tmp_path / "0" / "first.ckpt")
    torch.save({"step": 3}, tmp_path / "0" / "other.ckpt")
    torch.save({"step": 4}, tmp_path / "1" / "other.ckpt")
    on_ranks(2, tmp_path, load_on_ranks, tmp_path)


def test_trainer_of_one_process_in_several_ranks_is_refused(tmp_path):
    trainer = SimpleNamespace(world_size=1, strategy=None)
    with pytest.raises(ConfigError, match=r"started 4 processes, and the trainer uses 1 .*: they would train alone"):
        join_ranks(TWO_HOSTS, trainer, None, tmp_path)
