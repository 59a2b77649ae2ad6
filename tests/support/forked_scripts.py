"""An interpreter that has imported what scripts import, and forks each of them: their imports are paid for once."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
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
    """Runs scripts as ``python script.py words`` does, each in a fork that ends as an interpreter ends.

    Args:
        modules: What is imported before the first fork.
    """

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *modules],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: Path, *words: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a script with these words in a folder, with further variables; return its exit code and its output."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            told = [str(script), *map(str, words)], str(cwd), env, str(out), str(err)
            self._process.stdin.write(json.dumps(told) + "\n")
            self._process.stdin.flush()
            code = self._process.stdout.readline()
            assert code, "the interpreter that forks the scripts has ended"
            return subprocess.CompletedProcess(told[0], int(code), out.read_text(), err.read_text())

    def close(self) -> None:
        """End the interpreter, and what a test that was broken off may have left running in it."""
        self._process.stdin.close()
        try:
            assert self._process.wait(30) == 0
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process.stdout.close()


def _become(words: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """Make this fork what a new interpreter would be."""
    os.chdir(cwd)
    os.environ.update(env)
    for number, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), *((path, os.O_WRONLY | os.O_CREAT) for path in (out, err))]
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)


def _serve(modules: list[str]) -> list[str] | None:
    """Fork for each line of stdin; return the words of the script in a fork, None in the end."""
    for name in modules:
        import_module(name)
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            told = json.loads(line)
            _become(*told)
            return told[0]
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()
    return None


if __name__ == "__main__" and (script := _serve(sys.argv[1:])) is not None:
    runpy.run_path(script[0], run_name="__main__")
