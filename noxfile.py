"""The test matrix. ``nox`` runs every session, ``nox -s lint`` one, ``nox -l`` lists them.

``nox -s "tests-3.13" -- tests/loader`` gives pytest other arguments than the session's own.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.options.default_venv_backend = "uv|virtualenv"

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PYTHON = "3.13"
TEST_TOOLS = {"build", "hatchling", "hypothesis", "pip", "psutil", "pytest", "pytest-timeout"}
LIGHTNING = [f"tests/{part}" for part in ("app", "callbacks", "datamodules", "examples", "loader/lightning", "recipes")]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The whole suite with the latest of everything."""
    session.install("--editable", ".[dev]")
    run_suite(session)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """The whole suite with every requirement at its lower bound."""
    pins = session.cache_dir / "oldest.txt"
    pins.write_text("\n".join(lower_bounds()))
    session.install("--editable", ".[dev]", "--constraint", str(pins))
    run_suite(session)


@nox.session(python=PYTHON)
@nox.parametrize("end", ["oldest", "latest"], ids=["oldest", "latest"])
def lightning(session: nox.Session, end: str) -> None:
    """The tests of what stands on Lightning, with the oldest and the latest allowed one beside the latest torch."""
    pins = [pin for pin in lower_bounds() if pin.startswith("lightning==")] if end == "oldest" else []
    session.install("--editable", ".[dev]", *pins)
    run_pytest(session, *LIGHTNING)


@nox.session(python=PYTHON)
def base(session: nox.Session) -> None:
    """The tests of what the base install promises, in an environment without extras."""
    tools = [each for each in EXTRAS["dev"] if Requirement(each).name in TEST_TOOLS]
    session.install("--editable", ".", *tools)
    run_suite(session)


@nox.session(python=PYTHON)
@nox.parametrize("extras", ["", "[all]"], ids=["base", "all"])
def imports(session: nox.Session, extras: str) -> None:
    """Every public module is imported without a warning, in the base install and with all extras."""
    session.install("--editable", f".{extras}")
    modules = [name for name in public_modules() if extras or not needs_hydra(name)]
    session.run("python", "-W", "error", "-c", f"import {', '.join(modules)}")


def needs_hydra(module: str) -> bool:
    """Whether a module needs the extra ``hydra``: those of the app, but for the commands without a config."""
    if module.startswith("lit_loader.app.commands"):
        return module.endswith(".tune")
    return module.startswith("lit_loader.app.")


# A reused environment would hold the extras of the run before.
@nox.session(python=PYTHON, reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """The sdist and the wheel are sound, and the wheel works outside of the tree, without extras and with the app's."""
    tools = session.cache_dir / "wheel"
    session.run("python", "-m", "venv", "--clear", str(tools))
    python = str(tools / "bin" / "python")
    names = {"build", "pytest", "pytest-timeout"}
    required = [each for each in EXTRAS["dev"] if Requirement(each).name in names]
    session.run(python, "-m", "pip", "install", "--quiet", "twine", *required, external=True)
    session.run(python, "-m", "build", "--outdir", str(tools / "dist"), external=True)
    sdist, built = sorted(map(str, (tools / "dist").iterdir()), key=lambda path: path.endswith(".whl"))
    session.run(python, "-m", "twine", "check", "--strict", sdist, built, external=True)
    # the environment of the session gets the wheel and what it requires, and no tools
    options = ["-p", "no:cacheprovider", "--confcutdir=tests/installed", "--timeout=1200"]
    for extras, file in (("", "test_base.py"), ("[hydra]", "test_app.py")):
        session.install(f"{built}{extras}")
        env = {"LIT_LOADER_PYTHON": str(Path(session.bin, "python"))}
        session.run(python, "-m", "pytest", *options, f"tests/installed/{file}", env=env, external=True)


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """Style and types."""
    session.install("--editable", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


def run_suite(session: nox.Session) -> None:
    """Run what `make test` runs, or pytest with the arguments after ``--``."""
    if session.posargs:
        run_pytest(session)
    else:
        session.run("make", "parts", "PY=python", external=True)


def run_pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest with the arguments after ``--``, or else with these."""
    session.run("python", "-m", "pytest", "-m", "not soak", *(session.posargs or arguments))


def lower_bounds() -> list[str]:
    """Every requirement of pyproject.toml as ``name==bound``."""
    pins = []
    for text in {*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)}:
        requirement = Requirement(text)
        pins += [f"{requirement.name}=={each.version}" for each in requirement.specifier if each.operator == ">="]
    return sorted(pins)


def public_modules() -> list[str]:
    """Every module of the package but its entry point."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("lit_loader/**/*.py"))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths if path.stem != "__main__")
