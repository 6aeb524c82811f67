"""What README and docs tell a user to type is typed here, with smaller models.

A block of `sh` or `python` is run, unless `<!-- not run: REASON -->` stands before it. Blocks of
`toml` are read as recipes; blocks of `text` are output. In a table after `<!-- calls -->` the code
in the last column is run, commands and Python with the names of the last block of `python`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from bighmm.cli.common import models_stay_open
from bighmm.cli.flags import commands_with_flags
from bighmm.cli.main import COMMANDS, main
from bighmm.model import params
from bighmm.model.support import base as supports
from bighmm.model.transitions import base as transitions
from bighmm.train.recipe import packaged_recipes, read_recipe
from tiny_lm import save_language_model

pytestmark = pytest.mark.xdist_group("docs")  # pages share what one command has made

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
CALLS = re.compile(r"^<!-- calls -->\n+(?P<table>(?:^\|.*\n)+)", re.MULTILINE)
SMALL_LM = "--tokens 2000 --length 8 --states 8 --width 8 --epochs 1"


class Block(NamedTuple):
    kind: str
    code: str
    reason: str | None  # why it is not run


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = {m.start(): Block(m["kind"], m["code"], m["reason"]) for m in FENCE.finditer(text)}
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(found), page
    reasons = sum(block.reason is not None for block in found.values())
    assert len(re.findall("<!-- not run:", text)) == reasons, page
    tables = {m.start(): Block("calls", m["table"], None) for m in CALLS.finditer(text)}
    assert len(tables) == text.count("<!-- calls -->"), page
    return [block for _, block in sorted((found | tables).items())]


def calls(table: str) -> list[str]:
    """The code in the last column of a table."""
    cells = (line.strip().strip("|").split("|")[-1] for line in table.splitlines()[2:])
    return [code for cell in cells for code in re.findall("`([^`]+)`", cell)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


BLOCKS = {page: blocks(page) for page in PAGES}


def smaller(line: str) -> str:
    """A command with flags that make it quick."""
    if line.startswith("bighmm distill-lm"):
        return f"{line} {SMALL_LM}"
    if not line.startswith("bighmm train") or "--family" in line:
        return line
    if "--resume" in line:
        return f"{line} --epochs 0.03" if "--epochs" in line else line
    width = "" if "scalar" in line else "--width 8"
    return f"{line} --states 64 --blocks 16 {width} --epochs 0.02"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder as after `make train`, and an environment with the commands on the path."""
    folder = tmp_path_factory.mktemp("docs")
    environment = {
        **os.environ,
        "BIGHMM_CACHE": str(tmp_path_factory.getbasetemp() / "cache"),  # that of other tests
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    save_language_model(folder / "models" / "smollm2")
    quickstart = smaller("bighmm train --recipe quickstart --out runs/pydoc-4096")
    subprocess.run(quickstart, shell=True, cwd=folder, env=environment, check=True)
    return folder, environment


@pytest.fixture
def own_registries(monkeypatch):
    """What an example registers is forgotten after the test."""
    for registry in (params.REGISTRY, supports.REGISTRY, transitions.REGISTRY):
        monkeypatch.setattr(registry, "known", registry.all())


def run_python(code: str, name: str, names: dict | None = None) -> dict:
    """Run code with some names, and return them with those that it defines."""
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(code, name, "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page(page, workplace, bighmm, own_registries, monkeypatch, capsys):
    """In this process, except what needs a shell: to load torch takes longer than most commands."""
    folder, environment = workplace
    monkeypatch.chdir(folder)
    names = None
    for kind, code, reason in BLOCKS[page]:
        known = ("sh", "python", "toml", "text", "calls")
        assert kind in known, f"{page} has a block of {kind!r}"
        if reason is not None or kind == "text":
            continue
        if kind == "toml":
            Path("other.toml").write_text("")
            Path("block.toml").write_text(code)
            read_recipe("block.toml")
        elif kind == "python":
            names = run_python(code, name_of(page))
            assert capsys.readouterr().out or "@register" in code, code
        else:
            for line in calls(code) if kind == "calls" else code.splitlines():
                if kind == "calls" and not line.startswith("bighmm "):
                    run_python(line, f"{name_of(page)}: {line}", names)
                else:
                    run_line(smaller(line), bighmm, folder, environment)


def run_line(line, bighmm, folder, environment):
    words = shlex.split(line)
    if words[0] == "bighmm" and not {">", "<", "|"} & set(words):
        done = bighmm(*words[1:])
        assert done.status == 0, f"{line}\n{done.err}"
        assert done.out.strip(), line
        return
    ran = subprocess.run(
        line, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, f"{line}\n{ran.stderr}"
    assert ran.stdout.strip() or ">" in words, line


def test_session(workplace, tmp_path, monkeypatch):
    """The commands of the page are those of the program that writes it, and all can be read."""
    folder, _ = workplace
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import transcript

    page = tmp_path / "transcript.md"
    with models_stay_open():
        transcript.main(transcript.Arguments(Path("runs/pydoc-4096"), page))
    made, shown = page.read_text(), transcript.PAGE.read_text(encoding="utf-8")
    commands = [re.findall(r"^[$>] .*$", text, re.MULTILINE) for text in (made, shown)]
    assert commands[0] == commands[1] and len(commands[0]) > 20
    for wrong in ("Unrecognized options", "Error parsing", "has no flag", "Missing from"):
        assert wrong not in made


def test_every_command_is_shown():
    text = "\n".join(b.code for found in BLOCKS.values() for b in found if b.kind == "sh")
    for name in COMMANDS:
        assert f"bighmm {name} " in text or f"bighmm {name}\n" in text, name


def test_every_kind_of_block_is_run():
    run = [b.kind for found in BLOCKS.values() for b in found if b.reason is None]
    assert run.count("sh") >= 15 and run.count("python") >= 15 and "toml" in run
    assert (
        sum(len(calls(b.code)) for found in BLOCKS.values() for b in found if b.kind == "calls")
        > 50
    )


def test_commands_within_sentences():
    """Their flags exist."""
    flags = {
        command.name: {flag.name for flag in command.flags}
        for command in commands_with_flags(COMMANDS)
    }
    seen = 0
    for page in PAGES:
        for code in re.findall(r"(?<!`)`bighmm ([^`]+)`(?!`)", page.read_text(encoding="utf-8")):
            name, *words = code.split()
            if name in flags:
                seen += 1
                unknown = [w for w in words if w.startswith("--") and w not in flags[name]]
                assert unknown == [], f"{name_of(page)}: bighmm {code}"
    assert seen > 20


def test_make_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "train --recipe quickstart\n" in makefile
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:`|^)make ([a-z-]+)(?:`|$)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page, target)


def test_links_and_files_of_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_files_named_in_the_docs_exist():
    places = (ROOT, ROOT / "src" / "bighmm", ROOT / "results" / "bench")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:\w+/)*[\w.-]+\.(?:py|toml|json|jsonl|svg|md))`", text):
            if name in MADE or re.search("[A-Z]{4}", name):  # capitals stand for some name
                continue
            found = [place for place in places if (place / name).exists()]
            assert found or any(ROOT.rglob(f"src/bighmm/**/{name}")), (page, name)


MADE = {  # by commands, or in other places than a checkout
    *("recipe.json", "log.jsonl", "result.json", "config.json", "tokenizer.json", "model.json"),
    *("request.json", "rows.toml", "vocab.json", "blocks.json", "manifest.json"),
    "state-names.json",
}


def test_packaged_recipes_are_listed():
    text = (DOCS / "learn" / "your-own-text.md").read_text(encoding="utf-8")
    for name in packaged_recipes():
        assert f"`{name}`" in text


def test_extensions_train(tmp_path, own_registries, monkeypatch, capsys):
    """The examples of the page about extending, through the command line; on a GPU if there is one.

    It is part of `make test-gpu`.
    """
    monkeypatch.chdir(tmp_path)
    for block in (b for b in BLOCKS[DOCS / "understand" / "extending.md"] if b.kind == "python"):
        run_python(block.code, "extending.md")
    small = "--states 64 --width 8 --epochs 0.02"
    for run, flags in (
        ("runs/shared", "--blocks 16 --parameterisation shared"),
        ("runs/parity", "--support parity --parameterisation ablation-b"),
    ):
        main(f"train {small} {flags} --out {run}".split())
        assert run in capsys.readouterr().out
        main(["eval", run, "--check-normalised"])
        assert "sum to one within" in capsys.readouterr().out
        main(["sample", run, "--must", "the", "--length", "5", "--n", "2"])
        assert capsys.readouterr().out.count("the") >= 2


def test_site(tmp_path):
    """Built strictly: a broken link or reference is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "site" / "reference" / "commands" / "index.html").read_text()
    assert "--check-normalised" in commands and "distill-lm" in commands
    recipes = (tmp_path / "site" / "reference" / "recipes" / "index.html").read_text()
    assert "states_per_token" in recipes and "word_bias" in recipes
