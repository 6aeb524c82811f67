"""The papers of this repository: rows, recipes, claims, results, and their places in a document."""

import dataclasses
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from bighmm.model.networks.pretrained import own_config
from bighmm.train.recipe import InitialSettings, from_saved, read_recipe
from papers.claims import judge
from papers.jobs import missing, planned
from papers.prepare import named_in, needs
from papers.report import write_docs
from papers.results import Results, read_results, run_name
from papers.rows import Prepare, papers_in, read_paper

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(params=papers_in(ROOT))
def paper(request):
    return read_paper(ROOT, request.param)


def lee(*names):
    return [read_recipe(ROOT / "papers" / "lee2025" / "recipes" / f"{name}.toml") for name in names]


def test_every_result_has_a_row_and_is_in_the_file_of_its_first_table(paper):
    results, files = read_results(paper), {}
    for row in paper.rows:
        if row.of is not None:  # in that paper's files
            assert set(results.files(row)) <= set(paper.other_results[row.of].iterdir())
            continue
        for seed, run in results.of(row).items():
            assert run.file == paper.results_file(row)
            files[row.known_as, row.corpus, seed] = run.file
    assert files == {tuple(key): run.file for key, run in results.runs.items()}


def test_every_recipe_is_valid_and_used(paper):
    used = {paper.recipe_file(row) for row in paper.rows if row.recipe is not None}
    for entry in paper.prepare:
        words = shlex.split(entry.command or "")
        used |= {ROOT / word for word in words if word.endswith(".toml")}
    for path in list(used):  # and what they are like
        while like := tomllib.loads(path.read_text(encoding="utf-8")).get("extends"):
            path = path.parent / like
            used.add(path)
    folder = ROOT / "papers" / paper.name / "recipes"
    own = {path for path in used if path.resolve().parent == folder}
    assert set(folder.iterdir()) == own
    for path in used:
        read_recipe(path)


def test_what_recipes_begin_with_can_be_prepared(paper):
    made = {entry.makes for entry in paper.prepare}
    for row in paper.rows:
        if row.recipe is not None:
            assert set(named_in(paper.recipe_file(row))) <= made


def test_the_papers_own_figures_do_not_contradict_the_claims(paper):
    assert paper.claims
    for claim in paper.claims:
        judged = judge(paper, read_results(paper), claim)
        assert claim.inequality.holds(judged.paper) is not False, claim.says


def test_the_document_has_what_the_results_say(paper, tmp_path):
    document, again = ROOT / "docs" / "reproduction.md", tmp_path / "again.md"
    shutil.copyfile(document, again)
    write_docs(paper, read_results(paper), again)
    assert again.read_text(encoding="utf-8") == document.read_text(encoding="utf-8")


def test_settings_that_all_rows_of_lee2025_share():
    paper = read_paper(ROOT, "lee2025")
    for row in paper.rows:
        recipe = read_recipe(paper.recipe_file(row))
        training = recipe.training
        if row.corpus != "web" or training.optimizer == "baum-welch":
            continue
        shared = (training.epochs, training.batches, training.batch, training.window)
        epochs = 0.285 if "-10m" in row.recipe else 2.85
        assert shared == (epochs, "windows", 200, 64)
        assert (training.beta1, training.beta2) == (0.9, 0.95)
        assert training.weight_decay == (0.0 if "no-decay" in row.recipe else 0.1)
        assert (training.schedule, training.warmup, training.final_lr) == ("cosine", 0.05, 0.1)
        assert training.state_dropout == 0 and recipe.model.support == "dense"


def test_rows_of_lee2025_that_are_compared_differ_in_one_thing():
    """Labels or not, which learning rate, how many states, where weights come from."""
    for plain, other, field in (
        ("scalar-512", "lvd-scalar", "initial"),
        ("scalar-512", "lvd-tokens-all", "initial"),
        ("ablation-b-512", "lvd-linear", "initial"),
        ("chiu-rush-512", "lvd-mlp", "initial"),
        ("centroids-none", "centroids-frozen", "initial"),
        ("smollm2-random", "smollm2-random-lvd", "initial"),
        ("smollm2-pretrained", "smollm2-pretrained-lvd", "initial"),
        ("scalar-128", "scalar-4096", "model"),
        ("transfer-random-1e-4", "transfer-random-3e-3", "training"),
        ("scalar-512", "scalar-1e-1", "training"),
        ("scalar-1e-1", "lvd-scalar-1e-1", "initial"),
        ("scalar-1e-1", "scalar-no-decay", "training"),
        ("scalar-512", "scalar-2e-1", "training"),
        ("scalar-128-4e-1", "scalar-2048-4e-1", "model"),
        ("lvd-scalar-random", "lvd-scalar-random-1e-1", "training"),
        ("ablation-b-512", "linear-1e-2", "training"),
        ("linear-1e-2", "lvd-linear-1e-2", "initial"),
        ("chiu-rush-512", "mlp-25e-4", "training"),
        ("mlp-25e-4", "lvd-mlp-25e-4", "initial"),
        ("factor-a", "factor-a-pi", "options"),
        ("ablation-b-512", "factor-a-b", "options"),
    ):
        one, two = (recipe.to_dict() for recipe in lee(plain, other))
        assert [section for section in one if one[section] != two[section]] == [field]


def test_the_study_of_weight_decay():
    """Each recipe with decay has a twin that differs in it alone; sizes differ in states alone."""
    paper = read_paper(ROOT, "lee2025")
    at_512 = paper.only_table("decay").rows
    rates = []
    for one, two in zip(at_512[0:6:2], at_512[1:6:2], strict=True):
        decayed, plain = lee(one.recipe, two.recipe)
        changed = dataclasses.replace(decayed.training, weight_decay=0.0)
        assert decayed.training.weight_decay == 0.1
        assert dataclasses.replace(decayed, training=changed) == plain
        rates.append((plain.model.parameterisation, plain.training.lr))
    assert rates == [("scalar", 0.2), ("ablation-b", 0.02), ("chiu-rush", 0.01)]
    (table,) = paper.only_table("decay-states").tables
    by_series = {
        row.series: [r for r in table.rows if r.series == row.series] for row in table.rows
    }
    assert len(by_series) == 6 and table.seeds == (42,)
    for number, series in enumerate(by_series.values()):
        assert [row.x for row in series] == [128, 256, 512, 1024, 2048, 4096]
        (same,) = lee(at_512[number].recipe)
        for row in series:
            (recipe,) = lee(row.recipe)
            assert recipe.model.states == row.x
            assert dataclasses.replace(recipe, model=same.model) == same


def test_rows_of_the_frontier_with_and_without_a_teachers_text():
    """Students have the model of their twin, if any, and a text by teachers of the same corpus."""
    paper = read_paper(ROOT, "frontier")
    students = [row for row in paper.rows if (row.recipe or "").startswith("teacher-")]
    assert {row.corpus for row in students} == {"ptb", "wikitext-2"}
    runs = {
        f"runs/frontier/{run_name(row, seed)}": row.corpus
        for row in paper.rows
        if row.can_run
        for seed in (1, 2)
    }
    for row in students:
        model = re.match(r"teacher(-\d+)", row.recipe).group(1)
        corpus = "" if row.corpus == "ptb" else f"-{row.corpus}"
        for twin in paper.rows_of(f"two-level{model}{corpus}", row.corpus):
            student, alone = (read_recipe(paper.recipe_file(each)) for each in (row, twin))
            assert (student.model, student.options) == (alone.model, alone.options)
            assert alone.mixed.more is None
        (text,) = named_in(paper.recipe_file(row))
        (entry,) = (entry for entry in paper.prepare if entry.makes == text)
        teachers = [needed.makes for needed in needs(entry, paper)]
        assert teachers and {runs[teacher] for teacher in teachers} == {row.corpus}


def test_the_plan_of_the_frontier():
    """It names runs of its rows and what they need, each once."""
    paper = read_paper(ROOT, "frontier")
    assert len({step.makes for step in paper.plan}) == len(paper.plan)
    left = planned(paper, read_results(paper))
    assert all(isinstance(what, Prepare) for step, what in left if step.load == 0)
    everything = {step.makes for step, _ in planned(paper, Results())}
    assert {"written/ptb-short", "runs/frontier/averaged-65536-mixture-8-ptb"} <= everything


def test_the_plan_of_lee2025_is_the_study_of_weight_decay():
    paper = read_paper(ROOT, "lee2025")
    plan = {what.name for _, what in planned(paper, Results())}
    tables = [paper.only_table(name) for name in ("decay", "decay-states")]
    study = {job.name for part in tables for job in missing(paper, part, Results())}
    assert plan <= study
    left = {job.name for part in tables for job in missing(paper, part, read_results(paper))}
    assert left <= plan


def test_transformers_of_lee2025_have_the_sizes_of_their_pretrained_ones():
    random, teacher = lee("transfer-random-3e-4", "transformer")
    wanted = own_config(**dataclasses.asdict(teacher.options))
    sizes = json.loads(random.options.backbone)
    assert type(wanted)(**{**sizes, "reach": tuple(sizes["reach"])}) == wanted
    (centroids,) = lee("centroids")
    assert centroids.options.width == teacher.options.width


def test_results_were_made_from_the_recipes(paper):
    """What a user runs is what was measured, but for the seed, the device and how often to look."""
    results = read_results(paper)
    for row in paper.rows:
        if row.recipe is None:
            continue
        recipe = _what_matters(read_recipe(paper.recipe_file(row)))
        for run in results.of(row).values():  # none before a row has been run
            assert _what_matters(from_saved(run.fields["settings"], "result")) == recipe, row.recipe


def _what_matters(recipe):
    training = dataclasses.asdict(recipe.training)
    aside = {"seed", "device", "checks_per_epoch", "checkpoint_at_checks"}
    if recipe.training.schedule != "plateau":
        aside |= {"plateau_factor", "plateau_patience"}
    kept = {name: value for name, value in training.items() if name not in aside}
    names = {
        name: Path(folder).name
        for name in InitialSettings.FOLDERS
        if (folder := getattr(recipe.initial, name))
    }
    more = recipe.mixed.more and Path(recipe.mixed.more).name
    mixed = dataclasses.replace(recipe.mixed, more=more)
    paths = recipe.model.paths and Path(recipe.model.paths).name
    model = dataclasses.replace(recipe.model, paths=paths)
    return model, recipe.options, dataclasses.replace(recipe.initial, **names), mixed, kept
