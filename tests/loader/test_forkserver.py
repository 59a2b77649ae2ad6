"""Guarantee: the fork server starts once, with the first loader that needs it or when asked to, never at import."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lit_loader import start_forkserver
from lit_loader.loader import forkserver

PRELUDE = """
    import multiprocessing, sys, time
    from multiprocessing import forkserver as server

    def pid():
        return server._forkserver._forkserver_pid

    def preloaded():
        return server._forkserver._preload_modules
"""


def run(tmp_path, script, *, timeout=120):
    """Run a script in an interpreter of its own and return the lines that it printed."""
    path = tmp_path / "script.py"
    guarded = textwrap.indent(textwrap.dedent(script), "    ")  # Python 3.14's fork server imports the script
    path.write_text(f'{textwrap.dedent(PRELUDE)}\nif __name__ == "__main__":\n{guarded}')
    (tmp_path / "users_module.py").write_text("import sys; LOADED = True\n")
    root = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, str(tmp_path)])},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split("\n")[:-1]


def test_importing_starts_nothing_and_asking_starts_it_once_without_waiting_for_its_imports(tmp_path):
    nothing, first, running, restarted, same, quick = run(
        tmp_path,
        """
        import lit_loader, lit_loader.loader
        from lit_loader import DataLoader
        import torch
        DataLoader(range(3), num_workers=2, multiprocessing_context="forkserver")  # not iterated
        DataLoader(range(3), num_workers=2, worker_method="thread")
        list(DataLoader(range(3)))
        list(DataLoader(range(3), num_workers=1, multiprocessing_context="fork"))
        print(pid(), preloaded())
        start = time.monotonic()
        print(lit_loader.start_forkserver())
        seconds = time.monotonic() - start
        first = pid()
        print(first is not None)
        print(lit_loader.start_forkserver("users_module"))
        print(pid() == first)
        print(seconds < 1.5)  # importing torch there takes longer
        """,
    )
    assert nothing == "None ['__main__']"
    assert (first, running, restarted, same, quick) == ("True", "True", "False", "True", "True")


USERS_DATASET = """
import sys

BEFORE = set(sys.modules)


class Loaded:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"users_module", "decimal", "torch"} <= BEFORE
"""


def test_preload_list_of_the_user_is_kept_and_imported_before_workers_start(tmp_path):
    (tmp_path / "users_dataset.py").write_text(USERS_DATASET)
    names, loaded = run(
        tmp_path,
        """
        import lit_loader
        from users_dataset import Loaded
        multiprocessing.set_forkserver_preload(["users_module", "json"])
        lit_loader.start_forkserver("decimal", "json", "no_such_module")
        print(*preloaded())
        loader = lit_loader.DataLoader(Loaded(), num_workers=1, multiprocessing_context="forkserver", seed=1)
        print(*[bool(batch) for batch in loader], pid() is not None)
        """,
    )
    added = ["torch", "lit_loader.loader", "decimal", "no_such_module"]
    assert sorted(names.split()) == sorted([*added, "json", "users_module"])
    assert loaded == "True True True"


@pytest.mark.parametrize("seed", [pytest.param(None, marks=pytest.mark.soak), 1])
@pytest.mark.soak
def test_a_loader_that_needs_it_starts_it_with_torch_imported(tmp_path, seed):
    lines = run(
        tmp_path,
        f"""
        if __name__ == "__main__":
            from lit_loader import DataLoader, start_forkserver
            import torchvision
            loader = DataLoader(range(4), num_workers=2, multiprocessing_context="forkserver", seed={seed})
            print(pid())
            print([batch.item() for batch in loader])
            first = pid()
            print(*preloaded())
            list(DataLoader(range(4), num_workers=1, multiprocessing_context="forkserver", seed={seed}))
            print(pid() == first != None, start_forkserver())
        """,
    )
    pid_before, batches, names, same = lines
    assert pid_before == "None"
    assert batches == "[0, 1, 2, 3]"
    assert {"torch", "lit_loader.loader", "torchvision", "__main__"} == set(names.split())
    assert same == "True False"


def test_names_are_checked():
    with pytest.raises(TypeError, match="expected names of modules, got 3 of type int"):
        start_forkserver("torch", 3)


def test_a_platform_without_one_is_told_so(monkeypatch):
    monkeypatch.setattr(forkserver.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ValueError, match="spawn"):
        start_forkserver()
