"""rows.toml: what is read from it, and what is said of a wrong one."""

import shutil
import textwrap

import pytest


def test_papers_and_tables(bighmm, ask, reproduce, root):
    done = reproduce()
    assert done.status == 0 and done.out.splitlines() == [
        "small: Nobody 1999, Small Models",
        "  small/table1: perplexity",
        "  small/figure2: perplexity by states",
    ]
    found = ask("reproduce", "--root", root)["papers"]
    assert [paper["paper"] for paper in found] == ["small"]
    assert found[0]["tables"][0] == {"table": "table1", "title": "perplexity"}


def test_outside_a_checkout(refused, small):
    (small / "rows.toml").unlink()
    for what in ((), ("small",)):
        assert "give a checkout of bighmm as --root, or leave it out" in refused(*what)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["big"], "there is no paper 'big'; choose from small"),
        (["small/table9"], "small has no table 'table9'; choose from table1, figure2"),
        (["small", "--only", "lstm"], "no recipe of these tables has 'lstm' in its name"),
        (["small", "--json", "--markdown"], "--json and --markdown exclude each other"),
        (["small", "--only", "hmm", "--plots", "p"], "leave out --only"),
        (["small", "--jobs", "0"], "jobs must be at least 1, not 0"),
        (
            ["small", "--run", "--seeds", "1,x"],
            "--seeds takes whole numbers as in 1,2,3, not '1,x'",
        ),
        (["--run"], "name a paper first"),
    ],
)
def test_wrong_arguments(refused, arguments, said):
    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title = ", "titel = ", "has an unknown field 'titel'; known are title, figure, curves"),
        ('title = "Nobody 1999, Small Models"', "", "rows.toml lacks its title"),
        ('curves = ["table1"]', 'curves = ["table7"]', "names 'table7', which is no table of it"),
        ('name = "figure2"', 'name = "table1"', "has two tables 'table1'"),
        ('name = "figure2"', 'name = "a/b"', "is not made of letters, digits and dashes"),
        ('name = "figure2"', "name = 2", "table 2: name = 2 is not of the kind"),
        ('corpus = "words", paper', "paper", "table 'table1', row 'Cited' lacks its corpus"),
        ("valid = 12,", "vaild = 12,", "row 'Cited', paper has an unknown field 'vaild'"),
        ("valid = 12,", 'valid = "12",', "valid = '12' is not of the kind that belongs there"),
        (", paper = { valid = 12, test = 11.0 }", "", "neither a recipe nor a figure of the paper"),
        ('recipe = "count"', 'recipe = "kount"', "the row '3-gram' has the recipe 'kount'"),
        ("x = 16, ", "", "the rows of a table with an axis need an x"),
        ("x = 16, ", "x = 16, range = [1], ", "range is the lowest and the highest figure, not"),
        ('axis = "states"', 'axis = "states"\nseeds = ["1"]', "seeds are whole numbers, not"),
        ("curves = [", 'figure = "train"\ncurves = [', "figure must be valid or test, not 'train'"),
        ('rows = [\n  { row = "HMM', 'rows = [\n  5, { row = "HMM', "a row must be a section"),
        ("title", "title title", "rows.toml cannot be read: "),
        ('"Cited", ', '"Cited", of = "large", ', "is of large, but names no recipe of it"),
        ('recipe = "count"', 'recipe = "count", of = "x"', "papers/x/recipes/count.toml"),
        ('recipe = "hmm"', 'recipe = "hmm", also = ["lstm"]', "no row on words has this recipe"),
        ('recipe = "hmm"', 'recipe = "hmm", also = "count"', "also = 'count' is not of the kind"),
        ('recipe = "hmm"', 'recipe = "hmm", also = [2]', "also = 2 is not made of letters"),
        ('"Cited", ', '"Cited", also = ["hmm"], ', "of two or more runs of a recipe"),
        (
            'recipe = "hmm"',
            'recipe = "hmm", mixture = 2, also = ["count"]',
            "is of several seeds or of several recipes",
        ),
    ],
)
def test_wrong_rows(refused, small, old, new, said):
    path = small / "rows.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert said in refused("small")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('[[claims]]\nsays = "x"', "claim 'x' lacks its if"),
        ('[[claims]]\nsays = "x"\nif = "hmm count"', "'hmm count' compares nothing"),
        ('[[claims]]\nsays = "x"\nif = "hmm < 2 count"', "'2 count' is neither a name, a number"),
        ('[[claims]]\nsays = "x"\nif = "hmm < lstm"', "claim 'x': no row has the recipe 'lstm'"),
        ('[[claims]]\nsays = "x"\nif = "hmm:test < count:tset"', "there is no figure 'tset'"),
        (
            '[[tables]]\nname = "a"\ntitle = "b"\nrows = [{ row = "c", corpus = "other", recipe = '
            '"count" }]\n[[claims]]\nsays = "x"\nif = "hmm < count"',
            "'count' has rows on other and words; say which corpus is meant",
        ),
        ('[[prepare]]\nmakes = "a"', "prepare 'a' needs a command, or by_hand and a sentence"),
        ('[[prepare]]\ncommand = "a"', "something to prepare lacks its makes"),
    ],
)
def test_wrong_claims_and_preparations(refused, more, section, said):
    more(section)
    assert said in refused("small")


ELSEWHERE = """
    title = "What is ours"
    about_claims = "Goals"

    [[tables]]
    name = "states"
    title = "perplexity by states"
    rows = [
      { row = "HMM", corpus = "words", recipe = "hmm", of = "small" },
      { row = "Large", corpus = "words", recipe = "large", not_yet = "it is too large" },
    ]

    [[claims]]
    says = "Below 45"
    if = "hmm or large < 45"
"""


def test_rows_of_another_paper_and_rows_for_later(
    rows, ask, reproduce, root, small, measured, tmp_path
):
    paper = root / "papers" / "ours"
    (paper / "recipes").mkdir(parents=True)
    (paper / "rows.toml").write_text(textwrap.dedent(ELSEWHERE))
    (paper / "recipes" / "large.toml").write_text('extends = "../../small/recipes/hmm.toml"')
    assert [row["ours"] for row in rows("ours")] == [None, None]
    measured("hmm", 40.0)
    first, second = rows("ours")
    assert first["ours"]["valid"] == 40.0 and second["ours"] is None
    assert first["results"] == ["papers/small/results/table1.jsonl"]
    assert ask("reproduce", "ours", "--root", root)["claims"][0]["verdict"] == "holds"

    printed = reproduce("ours").out
    assert "Large (not yet)" in printed and "Goals" in printed
    assert "**Goals**" in reproduce("ours", "--markdown").out
    done = reproduce("ours", "--run")  # nothing of it is run here
    assert done.status == 0 and not (root / "runs").exists()
    assert "Large is left out: it is too large" in done.err and "nothing is missing" in done.err

    moved = tmp_path / "moved"
    shutil.copytree(small / "results", moved / "small")
    shutil.rmtree(small / "results")
    assert rows("ours")[0]["ours"] is None
    assert rows("ours", "--results", moved)[0]["ours"]["valid"] == 40.0
