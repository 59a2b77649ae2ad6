"""``python -m tests.support.without_parts FOLDER PART...``: take parts of the platform away, then use the package.

Each PART is one of `PARTS`, or several joined by ``+``. The packages of others are imported first, once; then one fork
for each PART takes it away, imports lit_loader afresh and runs epochs. After a last word ``spawn`` workers are spawned,
and import lit_loader without these parts too. Writes what failed to standard error.

The packages of others come first, as those of Python's own need parts of the same platform: ``random`` calls
``os.register_at_fork`` wherever there is a fork.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def block(module):
    sys.modules[module] = None  # an import raises ModuleNotFoundError then


PARTS = {
    "resource": lambda: block("resource"),
    "register_at_fork": lambda: delattr(os, "register_at_fork"),
    "memfd_create": lambda: delattr(os, "memfd_create"),
    "pidfd_open": lambda: delattr(os, "pidfd_open"),
}
NO_SLOTS = {"memfd_create", "register_at_fork"}


def take_away(parts):
    for part in parts:
        PARTS[part]()


take_away(filter(None, os.environ.get("WITHOUT", "").split("+")))  # in a worker that was spawned


class Draws(Dataset):
    """Draws from torch and numpy; large enough for a slot."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        from lit_loader import sample_rng

        return {"image": torch.rand(3, 64, 64) + index, "array": sample_rng().numpy.random(5), "position": index}


class Dies(Draws):
    """The first worker that makes sample 7 is killed."""

    def __init__(self, folder):
        self.once = folder / "once"

    def __getitem__(self, index):
        if index == 7 and get_worker_info() is not None and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))


def epochs(loader):
    with loader:
        return [batch for _ in range(2) for batch in loader]


def same(batches, expected_batches):
    return len(batches) == len(expected_batches) and all(
        list(batch) == list(expected) and all(torch.equal(batch[name], expected[name]) for name in batch)
        for batch, expected in zip(batches, expected_batches, strict=True)
    )


def import_everything():
    import lit_loader

    for module in pkgutil.walk_packages(lit_loader.__path__, "lit_loader."):
        if not module.name.startswith("lit_loader.conf."):
            importlib.import_module(module.name)
    for name in lit_loader.__all__:
        getattr(lit_loader, name)


def check(parts, folder, *, spawn):
    take_away(parts)
    os.environ["WITHOUT"] = "+".join(parts)
    import_everything()
    from lit_loader import DataLoader
    from lit_loader.app.composition import hints
    from lit_loader.memory import open_slots

    def loader(dataset=None, **workers):
        return DataLoader(dataset or Draws(), 4, shuffle=True, seed=3, **workers)

    expected = epochs(loader())
    context = "spawn" if spawn else "fork"
    processes = loader(num_workers=2, multiprocessing_context=context, persistent_workers=True, hang_timeout_s=60)
    assert same(epochs(processes), expected), context
    if spawn:
        return
    assert same(epochs(loader(num_workers=2, worker_method="thread")), expected), "threads"
    for method in ("multiprocessing", "thread"):
        stream = DataLoader(Stream(), 4, num_workers=1, seed=0, worker_method=method)
        assert [batch.tolist() for batch in stream] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]], method
    if "pidfd_open" in parts:  # by which ends are noticed
        check_ends(folder, loader, expected)
    slots = open_slots()
    assert (slots is None) == bool(NO_SLOTS & set(parts)), "slots"
    if slots is not None:
        slots.close()
    check_caches(folder)
    reader, writer = os.pipe()
    os.dup2(writer, sys.stdout.fileno())
    os.close(reader)
    assert hints._stdout_reader_left(), "hints"


def check_ends(folder, loader, expected):
    """A worker that is killed is replaced; workers end with a main process that is killed."""
    from lit_loader.errors import WorkerRestartWarning

    with pytest.warns(WorkerRestartWarning, match="SIGKILL"):
        assert same(epochs(loader(Dies(folder), num_workers=2)), expected), "a killed worker"
    check_orphans(folder / "pids", loader)
    check_orphans(folder / "late pids", loader, listens_late=True)


def check_orphans(pids, loader, *, listens_late=False):
    main = os.fork()
    if main == 0:
        if listens_late:
            from lit_loader.engine.worker import ProcessLink

            listen = ProcessLink._listen
            ProcessLink._listen = lambda link: listen_late(listen, link)
        workers = loader(num_workers=2, persistent_workers=True)
        next(iter(workers))
        pids.write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(main, 0)
    deadline = time.monotonic() + 10
    workers = pids.read_text().split()
    assert len(workers) == 2
    while any(map(runs, workers)):
        assert time.monotonic() < deadline, "workers outlive their main process"
        time.sleep(0.02)


def listen_late(listen, link):
    """Begin to watch the main process when it has ended."""
    while os.getppid() == link._main_pid:
        time.sleep(0.01)
    listen(link)


def runs(pid):
    """Whether a process has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_caches(folder):
    """Draw the embedded data set, which takes a lock, and keep its images decoded, which takes another."""
    from lit_loader import CacheSettings, DetectionDataset, read_annotations
    from lit_loader.datasets.shapes import draw_shapes

    root = draw_shapes(folder, num_images={"train": 4}, image_size=64, progress=False)
    table = read_annotations("voc", root, "train", use_cache=False, progress=False)
    plain = DetectionDataset(table)
    cached = DetectionDataset(table, cache=CacheSettings(cache_dir=folder, progress=False))
    assert torch.equal(cached[3][0], plain[3][0])


def main(folder, *words):
    import hydra  # noqa: F401
    import lightning.pytorch  # noqa: F401
    import torchvision  # noqa: F401

    assert not any(name.startswith("lit_loader") for name in sys.modules)
    multiprocessing.set_start_method("fork")  # not Python 3.14's, which imports the main module
    spawn = words[-1] == "spawn"
    for combination in words[: len(words) - spawn]:
        within = Path(folder) / combination
        within.mkdir()
        pid = os.fork()
        if pid == 0:
            signal.alarm(50)
            try:
                check(combination.split("+"), within, spawn=spawn)
            except BaseException:
                os.write(2, f"{combination}: {traceback.format_exc()}".encode())
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            os.write(2, f"without {combination}: exit code {code}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
