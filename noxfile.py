"""The test matrix. ``nox`` runs all sessions, ``nox -s lint`` a single one, and ``nox -l`` lists them.

``nox -s "tests-3.13" -- tests/loader`` replaces the session's arguments of pytest.
"""

from __future__ import annotations

import itertools
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
    """Run the whole suite with the latest versions."""
    session.install("--editable", ".[dev]")
    run_suite(session)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Run the whole suite with every requirement at its lower bound."""
    pins = session.cache_dir / "oldest.txt"
    pins.write_text("\n".join(lower_bounds()))
    session.install("--editable", ".[dev]", "--constraint", str(pins))
    run_suite(session)


@nox.session(python=PYTHON)
@nox.parametrize("end", ["oldest", "latest"], ids=["oldest", "latest"])
def lightning(session: nox.Session, end: str) -> None:
    """Run the tests that need Lightning, with its oldest and its latest allowed version and the latest torch."""
    pins = [pin for pin in lower_bounds() if pin.startswith("lightning==")] if end == "oldest" else []
    session.install("--editable", ".[dev]", *pins)
    run_pytest(session, *LIGHTNING)


@nox.session(python=PYTHON)
def base(session: nox.Session) -> None:
    """Run the suite in an environment without extras; tests that need one are skipped."""
    session.install("--editable", ".", *dev_requirements(TEST_TOOLS))
    run_suite(session)


@nox.session(python=PYTHON)
@nox.parametrize("extras", ["", "[all]"], ids=["base", "all"])
def imports(session: nox.Session, extras: str) -> None:
    """Import every public module without a warning, in the base install and with all extras."""
    session.install("--editable", f".{extras}")
    modules = [name for name in public_modules() if extras or not needs_hydra(name)]
    session.run("python", "-W", "error", "-c", f"import {', '.join(modules)}")


def needs_hydra(module: str) -> bool:
    """Return True for the modules of the app, except for the commands without a config."""
    if module.startswith("lit_loader.app.commands"):
        return module.endswith(".tune")
    return module.startswith("lit_loader.app.")


# A reused environment would still contain the extras of the previous run.
@nox.session(python=PYTHON, reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Check sdist and wheel, and test the wheel outside of the tree, without extras and with the app's extras."""
    tools = session.cache_dir / "wheel"
    session.run("python", "-m", "venv", "--clear", str(tools))
    python = str(tools / "bin" / "python")
    required = dev_requirements({"build", "pytest", "pytest-timeout"})
    session.run(python, "-m", "pip", "install", "--quiet", "twine", *required, external=True)
    session.run(python, "-m", "build", "--outdir", str(tools / "dist"), external=True)
    sdist, built = sorted(map(str, (tools / "dist").iterdir()), key=lambda path: path.endswith(".whl"))
    session.run(python, "-m", "twine", "check", "--strict", sdist, built, external=True)
    # The environment of the session gets the wheel and its requirements, but no tools: a dependency that only the tools
    # bring would otherwise not be missed.
    options = ["-p", "no:cacheprovider", "--confcutdir=tests/installed", "--timeout=1200"]
    for extras, file in (("", "test_base.py"), ("[hydra]", "test_app.py")):
        session.install(f"{built}{extras}")
        env = {"LIT_LOADER_PYTHON": str(Path(session.bin, "python"))}
        session.run(python, "-m", "pytest", *options, f"tests/installed/{file}", env=env, external=True)


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install("--editable", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(python=PYTHON)
def docs(session: nox.Session) -> None:
    """Build the site with warnings as errors, and check its links and what its pages load."""
    session.install("--editable", ".[dev]")
    session.run("python", "-m", "pytest", "-m", "soak", "tests/documents/test_site.py", *session.posargs)


def run_suite(session: nox.Session) -> None:
    """Run the parts of `make test`, or pytest with the arguments after ``--``."""
    if session.posargs:
        run_pytest(session)
    else:
        session.run("make", "parts", "PY=python", external=True)


def run_pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest with the arguments after ``--``, or else with these."""
    session.run("python", "-m", "pytest", "-m", "not soak", *(session.posargs or arguments))


def lower_bounds() -> list[str]:
    """Return every requirement of pyproject.toml as ``name==bound``."""
    pins = []
    for text in set(itertools.chain(PROJECT["dependencies"], *EXTRAS.values())):
        requirement = Requirement(text)
        pins += [f"{requirement.name}=={bound.version}" for bound in requirement.specifier if bound.operator == ">="]
    return sorted(pins)


def dev_requirements(names: set[str]) -> list[str]:
    """Return the requirements of the extra ``dev`` with these names."""
    return [text for text in EXTRAS["dev"] if Requirement(text).name in names]


def public_modules() -> list[str]:
    """Return every module of the package except its entry point, which would run the app."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("lit_loader/**/*.py"))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths if path.stem != "__main__")
