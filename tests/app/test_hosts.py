"""Several hosts: ranks of torchrun and srun share the name of a run's folder, check each other and end together."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import hydra
import pytest
import torch
import torch.distributed as dist
import yaml
from hydra.types import RunMode
from lightning.pytorch import LightningDataModule
from omegaconf import OmegaConf

from lit_loader.app import building, running, training
from lit_loader.app import launch as launch_module
from lit_loader.app.checkpoints import DurableCheckpointIO
from lit_loader.app.composition import ConfigError
from lit_loader.app.joining import _check_same, _Rank, join_ranks
from lit_loader.app.launch import (
    Launch,
    check_trainer,
    checkpoint_to_continue,
    connected,
    named_run,
    read_launch,
    wait_for_ranks,
)
from lit_loader.app.running import _check_sweep, one_job, run
from lit_loader.datamodules.data_fingerprint import set_record
from lit_loader.errors import LitLoaderError
from lit_loader.foundation.host import decide_num_workers, read_resources
from tests.support.annotation_tables import full_table
from tests.support.hosts import on_hosts, slurm_variables
from tests.support.lightning_ranks import on_ranks
from tests.support.shipped_configs import CONF
from tests.support.small_app import in_folder

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
}
HOSTS_TRAINER = yaml.safe_load((CONF / "trainer/ddp_hosts.yaml").read_text())
SLURM = slurm_variables(2, 3, 12345)
# The agents of torchrun take seconds to find each other.
LAUNCHERS = [pytest.param("torchrun", marks=pytest.mark.soak), "srun"]
TWO_HOSTS = Launch(launcher="torchrun", rank=0, world_size=4, ranks_per_host=2, num_hosts=2)
SECOND_RANK = replace(TWO_HOSTS, rank=1)


def test_launch_is_read_from_torchrun_or_slurm():
    launch = read_launch(TORCHRUN)
    assert launch == Launch(launcher="torchrun", rank=3, world_size=4, ranks_per_host=2, num_hosts=2)
    assert read_launch(SLURM) == Launch(launcher="srun", rank=2, world_size=3, ranks_per_host=1, num_hosts=3)
    # torchrun within a job of Slurm.
    assert read_launch({**SLURM, **TORCHRUN}) == launch
    assert read_launch({}) is None
    assert read_launch({**SLURM, "SLURM_NTASKS": "1"}) is None
    # The shell of an allocation, with salloc or srun --pty.
    interactive = {**SLURM, "SLURM_JOB_NAME": "interactive"}
    assert read_launch({**interactive, "SLURM_PTY_PORT": "1"}) is None
    del interactive["SLURM_STEP_ID"]
    assert read_launch(interactive) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "3"}, "started 3 processes on 2 hosts, 2 of them on .*: give torchrun the same"),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "2"}, "started 3 processes on 3 hosts, 2 of them on .*: give srun the"),
        ({name: SLURM[name] for name in SLURM if name != "SLURM_STEP_ID"}, "srun did not start this .*; write `srun"),
        ({name: SLURM[name] for name in SLURM if "PER_NODE" not in name}, "SLURM_NTASKS=3 without .*; replace"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "RANK is not set, but other variables of torchrun .*; start the command"),
        ({**TORCHRUN, "WORLD_SIZE": "-1"}, "WORLD_SIZE='-1' is not a whole number, .* or unset TORCHELASTIC_RUN_ID"),
        ({"SLURM_NTASKS": "x"}, "SLURM_NTASKS='x' is not a whole number"),
        ({**SLURM, "SLURM_JOB_NAME": "interactive"}, "srun started 3 tasks in a job .*; write `srun --job-name=train"),
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


def test_named_run_continues_from_its_last_checkpoint_with_the_same_overrides_only(tmp_path):
    folder = tmp_path / "faces"
    variables = {"LIT_LOADER_RUN": "faces"}
    words = ["seed=1", "dataset.storage.sas_key=***"]
    assert checkpoint_to_continue(folder, ["seed=2"], variables) is None
    assert checkpoint_to_continue(folder, words, variables) is None
    path = folder / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.touch()
    assert checkpoint_to_continue(folder, words, variables) == str(path)
    assert checkpoint_to_continue(folder, words, {}) is None
    assert checkpoint_to_continue(folder, words, {"LIT_LOADER_RUN": "aces"}) is None
    message = (
        r"LIT_LOADER_RUN=faces continues .*: seed=1, and now seed=2; unset .*resume_in_place=true ckpt_path=.*last.ckpt"
    )
    with pytest.raises(ConfigError, match=message):
        checkpoint_to_continue(folder, ["seed=2", words[1]], variables)
    (folder / "named_run.json").unlink()
    with pytest.raises(ConfigError, match="was started with other overrides"):
        checkpoint_to_continue(folder, words, variables)


@pytest.mark.parametrize("name", ["", " ", "..", "a/b"])
def test_name_of_a_run_that_names_no_folder_is_refused(monkeypatch, name):
    monkeypatch.setenv("LIT_LOADER_RUN", name)
    with pytest.raises(ConfigError, match=r"LIT_LOADER_RUN='.*' is not the name of a folder"), named_run(None):
        pass


@pytest.mark.filterwarnings("ignore")
def test_fit_continues_from_the_last_checkpoint_of_rank_0(tmp_path, monkeypatch, capsys):
    paths = []
    strategy = SimpleNamespace(broadcast=lambda path: f"{path} of rank 0")
    run_parts = SimpleNamespace(trainer=SimpleNamespace(strategy=strategy))
    monkeypatch.setattr(training, "build_run", lambda *_, **__: run_parts)
    monkeypatch.setattr(training, "RunPage", lambda *_, **__: SimpleNamespace(write=lambda *_, **__: None))
    monkeypatch.setattr(training, "_fit", lambda _, path: paths.append(path))
    monkeypatch.setattr(training, "logged_metrics", lambda _: {})
    monkeypatch.setattr(training, "finish", lambda *_: None)
    monkeypatch.setenv("LIT_LOADER_RUN", "faces")
    cfg = OmegaConf.create({"paths": {"output_dir": str(tmp_path / "faces")}, "test": False})
    training.train(cfg)
    last = tmp_path / "faces/checkpoints/last.ckpt"
    last.parent.mkdir()
    torch.save({key: {} for key in ("state_dict", "epoch", "global_step", "loops", "optimizer_states")}, last)
    training.train(cfg)
    assert paths == ["None of rank 0", f"{last} of rank 0"]
    assert f"LIT_LOADER_RUN=faces: continues from {last}" in capsys.readouterr().out
    torch.save({"state_dict": {}}, last)
    with pytest.raises(ConfigError, match="ckpt' holds only weights"):
        training.train(cfg)


def test_run_on_several_hosts_checks_its_trainer_and_joins_its_ranks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(building, "read_launch", lambda _: TWO_HOSTS)
    monkeypatch.setattr(building, "join_ranks", lambda launch, *_: [f"{launch.world_size} ranks"])
    monkeypatch.setattr(building, "instantiate", lambda *_, **__: LightningDataModule())
    for name in ("_build_model", "_build_trainer", "_log_hyperparameters", "shipped_targets", "validate"):
        monkeypatch.setattr(building, name, lambda *_: {})
    cfg = OmegaConf.create(
        {
            "datamodule": {"_target_": "lightning.pytorch.LightningDataModule"},
            "model": {"_target_": "lightning.pytorch.LightningModule"},
            "trainer": {"num_nodes": 3},
            "paths": {"output_dir": str(tmp_path)},
        }
    )
    with pytest.raises(ConfigError, match="but torchrun started 4 processes"):
        building.build_run(cfg)
    cfg.trainer.update(num_nodes=2, devices=2)
    building.build_run(cfg)
    assert capsys.readouterr().out == "4 ranks\n"


def test_sweep_in_several_ranks_is_refused(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    hydra_config = SimpleNamespace(mode=RunMode.MULTIRUN)
    monkeypatch.setattr(running, "HydraConfig", SimpleNamespace(initialized=lambda: True, get=lambda: hydra_config))
    message = r"a sweep \(-m\) in 4 ranks of torchrun: each of them would run all jobs"
    with pytest.raises(ConfigError, match=message), one_job(OmegaConf.create({})):
        pass
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")  # its tasks run one job together
    _check_sweep()


def meet(case):
    """Agree on a name and join a process group, as a run does; some ranks fail before."""
    launch = read_launch(os.environ)
    if case == "names":
        os.environ["LIT_LOADER_RUN"] = f"faces-{launch.rank}"
    # Tasks of submitit run a job without the command line. The first rank comes late, and serves the store of srun.
    start = connected(launch) if case == "job" else named_run(launch)
    if case == "job" and launch.rank == 0:
        time.sleep(0.2)
    try:
        with start:
            if case == "failure" and launch.rank == 1:
                raise ConfigError("dataset.root=/data does not exist")
            wait_for_ranks(launch)
            dist.init_process_group("gloo", rank=launch.rank, world_size=launch.world_size)
            names = [None] * launch.world_size
            dist.all_gather_object(names, os.environ.get("LIT_LOADER_RUN"))
            dist.destroy_process_group()
            return [*names, os.environ.get("LIT_LOADER_LOG_SUFFIX", "")]
    except (ConfigError, LitLoaderError) as error:
        return str(error)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_ranks_take_the_name_that_rank_0_gives_the_run(tmp_path, launcher):
    first, second = on_hosts([tmp_path / "a", tmp_path / "b"], meet, "run", launcher=launcher)
    assert first[0] == first[1] == second[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", first[0])
    assert (first[2], second[2]) == ("", "_rank1")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_that_fails_before_the_process_group_ends_the_others_with_its_error(tmp_path, launcher):
    first, _ = on_hosts([tmp_path / "a", tmp_path / "b"], meet, "failure", launcher=launcher)
    assert re.fullmatch(r"rank 1 on \S+ ended: dataset.root=/data does not exist", first)


def test_tasks_of_a_job_that_no_command_started_meet_each_other(tmp_path):
    assert on_hosts([tmp_path / "a", tmp_path / "b"], meet, "job", launcher="srun") == [[None, None, ""]] * 2


def test_names_that_differ_between_ranks_are_refused_at_once_on_all(tmp_path):
    first, second = on_hosts([tmp_path / "a", tmp_path / "b"], meet, "names", launcher="srun")
    assert re.match(r"LIT_LOADER_RUN=faces-1 on \S+, and the run of rank 0 on \S+ is faces-0; set it to", second)
    assert first.endswith(second)


def test_ranks_that_torchrun_starts_again_in_the_same_store_are_refused(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setattr(launch_module, "_open_store", lambda launch: store)
    with connected(SECOND_RANK), connected(SECOND_RANK):
        pass
    message = "torchrun has started rank 1 again .*; give torchrun one number of hosts, --nnodes=N and not a range"
    with pytest.raises(ConfigError, match=message), connected(SECOND_RANK):
        pass


def test_message_names_ranks_that_are_not_ready(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setattr(launch_module, "_open_store", lambda launch: store)
    monkeypatch.setattr(launch_module, "_READY_TIMEOUT_S", 0)
    store.set("host/2", "node-b")
    message = "3 of 4 ranks have not .*: rank 0 on an unknown host, rank 2 on node-b, rank 3 on an"
    with pytest.raises(LitLoaderError, match=message), connected(SECOND_RANK):
        wait_for_ranks(SECOND_RANK)


@hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name="train")
def main(cfg):
    with one_job(cfg):
        launch = read_launch(os.environ)
        if launch.rank == 1:
            raise ConfigError(f"seed={cfg.seed} is unlucky")
        wait_for_ranks(launch)


def run_on_a_rank():
    outcome = in_folder(".", lambda: run(main, ["dataset=shapes", "seed=2"]))
    return [outcome.code, outcome.err, sorted(path.as_posix() for path in Path("logs").rglob("*") if path.is_file())]


def test_command_on_two_ranks_has_one_folder_and_ends_on_both_with_the_error_of_one(tmp_path):
    first, second = on_hosts([tmp_path / "a", tmp_path / "b"], run_on_a_rank, launcher="srun")
    assert (first[0], second[0]) == (1, 1)
    assert re.search(r"error: rank 1 on \S+ ended: seed=2 is unlucky", first[1])
    (log,) = second[2]
    folder, _, name = log.rpartition("/")
    assert re.fullmatch(r"logs/train/runs/\d{4}-\S+", folder)
    assert name == "train_rank1.log"
    # Only the first rank writes the config.
    files = [f".hydra/{name}.yaml" for name in ("config", "hydra", "overrides")]
    assert first[2] == [f"{folder}/{name}" for name in (*files, "train.log")]


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
