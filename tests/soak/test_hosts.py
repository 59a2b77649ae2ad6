"""Whole runs on several hosts: the same stream on any number of them, and a host that dies ends the others."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain, count
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import HOSTS, on_hosts, train

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:Grad strides do not match bucket view strides"),
    pytest.mark.filterwarnings("ignore:.*could not find the monitored key"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]

GLOBAL_BATCH = 6
EVERY_STEP = "callbacks.last_checkpoint_in_epoch.every_n_train_steps=1"
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Run the app on a number of hosts, each in a new folder; return the result of each rank and the first folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    numbers = count()

    def run(num_hosts, *words, launcher="torchrun"):
        place = tmp_path / f"run{next(numbers)}"
        folders = [place / f"host{number}" for number in range(num_hosts)]
        words = [*HOSTS, f"datamodule.batch_size={GLOBAL_BATCH // num_hosts}", *words]
        results = on_hosts(folders, train, words, launcher=launcher)
        for result in results:
            assert isinstance(result, dict), result
            assert result["code"] == 0, result["err"]
        return results, folders

    return run


def stream(results):
    """Return the global batches: the batches of all ranks one after the other."""
    batches_of_ranks = zip(*(result["batches"] for result in results), strict=True)
    return [list(chain.from_iterable(batches)) for batches in batches_of_ranks]


def run_folder(folder):
    (path,) = folder.glob("logs/train/runs/*")
    return path


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_hosts_without_a_shared_disk_train_and_test_in_folders_of_one_name(hosts, launcher):
    results, folders = hosts(2, launcher=launcher)
    first, second = map(run_folder, folders)
    assert first.name == second.name
    files = {path.relative_to(second).as_posix() for path in second.rglob("*") if path.is_file()}
    assert files == {"train_rank1.log"}
    names = {path.name for path in first.rglob("*")}
    assert {"README.md", "train.log", "results.json", "last.ckpt", "config.yaml"} <= names
    # The checkpoint is only on the first host, and both test it.
    assert "tested: checkpoint" in results[0]["out"]
    assert "rank 1: " in results[0]["out"]


@pytest.mark.parametrize(
    ("saving", "loading", "workers"), [(1, 2, (0, 2)), (2, 3, (2, 0)), (3, 1, (0, 2)), (2, 1, (2, 2))]
)
def test_run_resumed_on_another_number_of_hosts_continues_the_same_stream(hosts, saving, loading, workers):
    def words(num_workers):
        return ["test=false", EVERY_STEP, "workers=default", f"workers.num_workers={num_workers}"]

    reference, _ = hosts(1, *words(0))
    first, folders = hosts(saving, *words(workers[0]), "trainer.max_steps=2")
    checkpoint = run_folder(folders[0]) / "checkpoints/last.ckpt"
    second, _ = hosts(loading, *words(workers[1]), f"ckpt_path={checkpoint}", "trust_run=true", "trainer.max_steps=-1")
    expected = stream(reference)
    assert len(expected) > 3
    assert stream(first) == expected[:2]
    assert stream(second) == expected[2:]


def test_named_run_that_is_started_again_continues_in_its_folder(hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_LOADER_RUN", "faces")
    shared = [
        f"paths.log_dir={tmp_path}/logs",
        "test=false",
        "callbacks.last_checkpoint_in_epoch.every_n_train_steps=1",
        "trainer.max_steps='${oc.decode:${oc.env:STEPS}}'",
    ]
    # The first start is stopped after some steps.
    monkeypatch.setenv("STEPS", "2")
    first, _ = hosts(2, *shared)
    monkeypatch.setenv("STEPS", "-1")
    second, _ = hosts(2, *shared)
    assert [path.name for path in (tmp_path / "logs/train/runs").iterdir()] == ["faces"]
    monkeypatch.delenv("LIT_LOADER_RUN")
    reference, _ = hosts(1, "test=false")
    assert stream(first) + stream(second) == stream(reference)


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def namespaces():
    """Networks of three hosts that are connected by a bridge."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    names = [f"lit{os.getpid()}-{number}" for number in range(3)]
    bridge = f"lit{os.getpid() % 100000}"
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            outside = f"v{os.getpid() % 100000}-{number}"
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", outside, "master", bridge, "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr}")
    finally:
        for name in names:
            for pid in processes_in(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


def processes_in(name):
    result = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
    return [int(pid) for pid in result.stdout.split()]


def start_host(name, number, num_hosts, folder, words):
    """Start torchrun in the network of a host, as ``docs/scale/hosts.md`` says."""
    folder.mkdir()
    program = [sys.executable, "-c", "import sys; from lit_loader.app.commands import main; sys.exit(main())"]
    options = ["--nnodes", str(num_hosts), "--nproc-per-node", "1", "--node-rank", str(number)]
    options += ["--master-addr", "10.77.0.1", "--master-port", "29500", "--no-python"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options, *program, "train", *words]
    environ = {**os.environ, "PYTHONPATH": ROOT, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    with (folder / "out").open("w") as out:
        return subprocess.Popen(
            ["ip", "netns", "exec", name, *torchrun], cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT
        )


@pytest.mark.parametrize(("num_hosts", "victim"), [(2, 1), (3, 0), (3, 2)])
def test_host_that_dies_ends_the_others_within_seconds(
    namespaces, tmp_path, monkeypatch, record_property, num_hosts, victim
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = [*HOSTS, f"datamodule.batch_size={GLOBAL_BATCH // num_hosts}", "workers=default", "workers.num_workers=2"]
    words += ["trainer.max_epochs=10000", "trainer.limit_val_batches=0"]
    folders = [tmp_path / f"host{number}" for number in range(num_hosts)]
    agents = [start_host(namespaces[number], number, num_hosts, folders[number], words) for number in range(num_hosts)]
    deadline = time.monotonic() + 240
    # Every rank has trained on a few batches.
    while not all((folder / "stream.jsonl").exists() for folder in folders):
        output = [(folder / "out").read_text()[-2000:] for folder in folders]
        assert time.monotonic() < deadline, output
        assert all(agent.poll() is None for agent in agents), output
        time.sleep(0.1)
    start = time.monotonic()
    for pid in processes_in(namespaces[victim]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    survivors = [number for number in range(num_hosts) if number != victim]
    try:
        codes = [agents[number].wait(timeout=60) for number in survivors]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    seconds = time.monotonic() - start
    record_property("seconds", f"{num_hosts} hosts, host {victim} killed: the others ended after {seconds:.1f} s")
    assert all(codes)
    cleanup_deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for name in namespaces for pid in processes_in(name)):
        assert time.monotonic() < cleanup_deadline
        time.sleep(0.1)
    assert seconds < 30
