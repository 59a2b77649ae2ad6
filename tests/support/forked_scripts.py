"""An interpreter that imports modules once, and runs each script in a fork."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

__all__ = ["EXAMPLES_IMPORT", "ForkedScripts"]

ROOT = Path(__file__).parents[2]
EXAMPLES_IMPORT = (
    "hydra",
    "lightning.pytorch.callbacks",
    "lit_loader.callbacks",
    "lit_loader.app.composition",
    "lit_loader.recipes",
    "matplotlib.pyplot",
    "rich.table",
    "torchmetrics",
)


class ForkedScripts:
    """Runs scripts as ``python script.py words`` does, each in a fork of one interpreter.

    Args:
        modules: Modules to import before the first fork.
    """

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *modules],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, script: Path, *words: str, cwd: Path, env: dict[str, str], modules: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a folder with additional variables; return its exit code and its output.

        The interpreter imports ``modules`` before, so later scripts have them as well.
        """
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out")
            err = Path(folder, "err")
            argv = [str(script), *map(str, words)]
            self._process.stdin.write(json.dumps([argv, str(cwd), env, str(out), str(err), modules]) + "\n")
            self._process.stdin.flush()
            code = self._process.stdout.readline()
            assert code, "the interpreter that forks the scripts has ended"
            return subprocess.CompletedProcess(argv, int(code), out.read_text(), err.read_text())

    def close(self) -> None:
        """End the interpreter, and kill scripts that an aborted test left running in it."""
        self._process.stdin.close()
        try:
            assert self._process.wait(30) == 0
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process.stdout.close()


def _prepare_fork(argv: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """Give this fork the folder, variables, streams and arguments of a new interpreter."""
    os.chdir(cwd)
    os.environ.update(env)
    for number, path in enumerate((os.devnull, out, err)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)


def _import_all(modules: list[str]) -> None:
    gc.disable()
    for name in modules:
        import_module(name)
    # The end of every fork collects garbage several times, which takes a second with the objects of the imports.
    gc.freeze()
    gc.enable()


def _serve(modules: list[str]) -> list[str] | None:
    """Fork for each line of stdin; return the arguments of the script in a fork, and None at the end of stdin."""
    _import_all(modules)
    while line := sys.stdin.readline():
        *arguments, more_modules = json.loads(line)
        if not sys.modules.keys() >= set(more_modules):
            _import_all(more_modules)
        pid = os.fork()
        if pid == 0:
            _prepare_fork(*arguments)
            return arguments[0]
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()
    return None


def _run(script: str) -> int:
    """Run a script; return the exit code that an interpreter would give it."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if not isinstance(stop.code, int | None):
            print(stop.code, file=sys.stderr)  # noqa: T201
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class _EndOfFork:
    """Ends a fork after the other handlers of its exit, without the teardown of modules, which takes half a second."""

    exit_code: int | None = None

    def __call__(self) -> None:
        if self.exit_code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code)


if __name__ == "__main__":
    end_of_fork = _EndOfFork()
    atexit.register(end_of_fork)  # first, so that it is called last
    if (argv := _serve(sys.argv[1:])) is not None:
        end_of_fork.exit_code = _run(argv[0])
