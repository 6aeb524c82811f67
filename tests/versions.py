"""Run the tests with the lowest and the newest versions of the dependencies that are allowed.

    python tests/versions.py                         all environments, one after the other
    python tests/versions.py lowest -- tests/data    one of them, and some of the tests

    lowest            the lower ends of the ranges in pyproject.toml, without transformers
    lowest-teachers   those of the extra `teachers`; transformers needs newer ones of some others
    newest            whatever pip finds

Each environment is a folder `.venv-NAME`, which is made when it is missing or pyproject.toml has
changed. It needs the package index, and some GiB for torch in `lowest` and in `newest`;
`lowest-teachers` lies on top of `lowest`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("explore", "fast", "sentencepiece", "plot")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "triton")  # of the extra `dev`
RAISED = {"huggingface_hub", "tokenizers", "safetensors"}  # by what transformers itself asks for
# Not what is made of the documentation and of stored results, for which versions do not matter.
TESTS = ("tests", "--ignore", "tests/test_docs.py", "--ignore", "tests/papers")
OF_TEACHERS = ("tests/interop", "tests/distill", "tests/guide", "tests/model/test_pretrained.py")


def lowest(requirements: list[str]) -> dict[str, str]:
    """The lower end of the range of each requirement that has one, by name."""
    found = {}
    for line in requirements:
        if match := re.match(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", line):
            found[match[1]] = match[2]
    return found


def main(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    chosen, tests = arguments[:cut] or list(ENVIRONMENTS), arguments[cut + 1 :]
    for name in chosen:
        if name not in ENVIRONMENTS:
            print(f"there is no {name!r}; choose from {', '.join(ENVIRONMENTS)}", file=sys.stderr)
            return 2
    failed = [name for name in chosen if not passes(name, tests)]
    print(f"failed: {', '.join(failed)}" if failed else f"passed: {', '.join(chosen)}")
    return bool(failed)


def passes(name: str, tests: list[str]) -> bool:
    """Whether the tests of an environment pass, which is made first if need be."""
    make, usual = ENVIRONMENTS[name]
    python = make()
    print(f"\n{name}: {versions(python)}", flush=True)
    flags = ["-q", "-n", "auto", "--dist", "loadgroup"]
    return run(python, "-m", "pytest", *flags, *(tests or usual)) == 0


def make_lowest() -> Path:
    project = settings()
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    pins = lowest([*wanted, *(line for line in extras["dev"] if line.startswith(TOOLS))])
    return environment("lowest", pins, [f"{ROOT}[{','.join(EXTRAS)}]", *TOOLS])


def make_lowest_teachers() -> Path:
    below = make_lowest()
    project = settings()
    base = lowest([*project["dependencies"], *project["optional-dependencies"]["plot"]])
    teachers = lowest(project["optional-dependencies"]["teachers"])
    pins = {n: v for n, v in base.items() if n not in RAISED} | teachers
    return environment("lowest-teachers", pins, list(teachers), on=below)


def make_newest() -> Path:
    return environment("newest", {}, [f"{ROOT}[{','.join(EXTRAS)},teachers]", *TOOLS])


ENVIRONMENTS = {
    "lowest": (make_lowest, TESTS),
    "lowest-teachers": (make_lowest_teachers, OF_TEACHERS),
    "newest": (make_newest, TESTS),
}


def environment(name: str, pins: dict[str, str], wanted: list[str], on: Path | None = None) -> Path:
    """The interpreter of an environment with these packages, made anew if the project changed.

    on: the interpreter of another environment, whose packages are used where this has none.
    """
    folder = ROOT / f".venv-{name}"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done, state = folder / "done", (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if done.is_file() and done.read_text(encoding="utf-8") == state:
        return python
    venv.create(folder, clear=True, with_pip=True)
    if on is not None:
        line = f"import site; site.addsitedir({str(packages_of(on))!r})\n"
        (packages_of(python) / "below.pth").write_text(line, encoding="utf-8")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{n}=={v}\n" for n, v in pins.items()), encoding="utf-8")
    wanted = [f"--editable={each}" if each.startswith(str(ROOT)) else each for each in wanted]
    flags = ["--quiet", "--upgrade", "--constraint", str(constraints)]
    if run(python, "-m", "pip", "--disable-pip-version-check", "install", *flags, *wanted):
        sys.exit(f"the environment {name} could not be made")
    done.write_text(state, encoding="utf-8")
    return python


def packages_of(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([python, "-c", code], text=True).strip())


def versions(python: Path) -> str:
    """The versions of the dependencies in an environment."""
    names = [*lowest(settings()["dependencies"]), "transformers"]
    code = (
        "import sys, importlib.metadata as m\n"
        "have = {d.name.lower().replace('-', '_') for d in m.distributions()}\n"
        "print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:] if n in have))"
    )
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    found = subprocess.check_output([python, "-c", code, *names], text=True).strip()
    return f"{version}, {found}"


def settings() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*command: str | Path) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
