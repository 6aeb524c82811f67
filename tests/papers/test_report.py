"""Tables for people, for programs and for documents."""

import json

import pytest

from papers.results import EVAL_BATCH


def test_nothing_measured(rows):
    found = rows("small")
    assert [row["table"] for row in found] == ["table1"] * 4 + ["figure2"]
    assert found[0] == {
        "table": "table1",
        "row": "3-gram",
        "corpus": "words",
        "recipe": "count",
        "paper": {"params": 2e6, "test": 30.5},
        "ours": None,
        "results": [],
    }
    assert found[1]["recipe"] is None and found[4]["paper"] == {"train": 38}


def test_one_run(rows, measured, small):
    measured("hmm", 40.5, train={"perplexity": 33.0})
    measured("hmm", 99.0, corpus="other")
    batches = [{"recipe": "hmm", "ms": 1.5}, {"recipe": "count", "ms": 2.5}]
    (small / "results" / EVAL_BATCH).write_text(json.dumps(batches))
    row = rows("small/figure2")[0]
    assert row["results"] == ["papers/small/results/table1.jsonl"]
    assert row["ours"] == {
        "params": 1_234_567,
        "valid": 40.5,
        "test": 39.5,
        "runs": 1,
        "seconds": 12.5,
        "train": 33.0,
        "eval_ms": 1.5,
    }


def test_several_runs(rows, measured):
    measured("hmm", 46.0, seed=10)
    measured("hmm", 40.0, seed=1, table="figure2")
    measured("hmm", 43.0, seed=2)
    row = rows("small", "--only", "hm")[0]
    files = [f"papers/small/results/{table}.jsonl" for table in ("figure2", "table1")]
    assert row["results"] == files
    assert row["ours"]["valid"] == pytest.approx(43.0) and row["ours"]["runs"] == 3
    assert row["ours"]["spread"] == {"valid": [40.0, 46.0], "test": [39.0, 45.0]}


def test_names_of_the_first_version(rows, measured, small):
    measured("hmm", 40.0)
    path = small / "results" / "table1.jsonl"
    path.write_text(path.read_text().replace('"num_parameters"', '"parameters"'))
    assert rows("small/figure2")[0]["ours"]["params"] == 1_234_567


def test_results_of_another_folder(rows, measured, small, tmp_path):
    measured("hmm", 40.0)
    assert rows("small", "--results", tmp_path / "mine")[2]["ours"] is None
    (tmp_path / "mine").mkdir()
    (small / "results").rename(tmp_path / "mine" / "small")
    row = rows("small", "--results", tmp_path / "mine")[2]
    assert row["ours"]["valid"] == 40.0 and row["results"] == ["../mine/small/table1.jsonl"]


def test_for_people(reproduce, measured):
    measured("hmm", 40.0)
    measured("hmm", 43.0, seed=2)
    done = reproduce("small")
    assert done.status == 0 and done.err == ""
    assert "Table 1: perplexity\n" in done.out and "Figure 2: perplexity by states\n" in done.out
    lines = [line.split() for line in done.out.splitlines()]
    assert ["3-gram", "words", "2M", "–", "–", "–", "30.5", "–", "–", "–"] in lines
    assert ["Cited", "(cited)", "words", "–", "–", "12", "–", "11.0", "–", "–", "–"] in lines
    spread = ["40.0", "41.5", "(40.0–43.0)", "–", "40.5", "(39.0–42.0)", "2", "12"]
    assert ["HMM", "2^4", "words", "–", "1.2M", *spread] in lines
    one = reproduce("small/figure2")
    assert "Figure 2" in one.out and "Table 1" not in one.out and "corpus" not in one.out


CLAIMS = """
    [[claims]]
    says = "HMMs are better than counting"
    if = "hmm < 1.5 * count"
    corpus = "words"

    [[claims]]
    says = "A seed matters less than a method"
    if = "hmm:spread < count:test - hmm:test"

    [[claims]]
    says = "The other text is harder"
    if = "hmm < hmm-other"
"""


def test_claims(ask, reproduce, measured, more, root):
    more(CLAIMS)
    asked = ("reproduce", "small", "--root", root)
    found = ask(*asked)["claims"]
    assert [claim["verdict"] for claim in found] == ["not measured"] * 3
    assert found[2] == {
        "says": "The other text is harder",
        "if": "hmm < hmm-other",
        "figure": "valid",
        "paper": [40.0, 50.0],
        "ours": [None, None],
        "verdict": "not measured",
    }
    measured("hmm", 40.0)
    measured("count", 28.0)
    measured("hmm-other", 39.0, corpus="other")
    found = ask(*asked)["claims"]
    verdicts = ["holds", "not measured", "does not hold"]
    assert [claim["verdict"] for claim in found] == verdicts
    assert found[0]["ours"] == [40.0, 42.0] and found[1]["ours"] == [None, -12.0]
    measured("hmm", 43.0, seed=2)
    assert ask(*asked)["claims"][1]["ours"] == [3.0, pytest.approx(27.0 - 40.5)]

    said = [" ".join(line.split()) for line in reproduce("small").out.splitlines()]
    assert "The other text is harder 40.0 < 50.0 41.5 < 39.0 does not hold" in said
    assert "A seed matters less than a method – 3.0 < -13.5 does not hold" in said


def test_claims_of_some_tables(ask, more, root):
    """Those that need no other rows."""
    more(CLAIMS)

    def said(*flags):
        return [claim["says"][:5] for claim in ask("reproduce", *flags, "--root", root)["claims"]]

    assert said("small") == said("small/table1") == ["HMMs ", "A see", "The o"]
    assert said("small/figure2") == [] and said("small", "--only", "hmm") == ["The o"]


def test_claims_in_documents(reproduce, refused, more, tmp_path):
    more(CLAIMS)
    names = ("table1", "figure2", "claims")
    marks = [f"<!-- begin small/{name} -->\n<!-- end small/{name} -->\n" for name in names]
    path = tmp_path / "docs.md"
    path.write_text("".join(marks[:2]))
    flags = ("--write-docs", path)
    assert "lacks the mark <!-- begin small/claims -->" in refused("small", *flags)
    assert reproduce("small/table1", *flags).status == 0  # claims are of the whole paper
    path.write_text("".join(marks))
    done = reproduce("small", "--markdown", *flags)
    text = path.read_text()
    assert "| claim | paper | ours | here it |\n| --- | ---: | ---: | ---: |\n" in text
    line = "| The other text is harder | 40.0 < 50.0 | – | not measured |\n"
    assert line in text and line in done.out


def test_the_papers_range_and_figure(reproduce, small):
    path = small / "rows.toml"
    text = path.read_text().replace("paper = { train = 38 }", "paper = { test = 38 }")
    text = text.replace("test = 38 }", "test = 38 }, range = [36.5, 40]")
    path.write_text(text.replace("curves", 'figure = "test"\ncurves'))
    assert "| HMM 2^4 | 38 (36.5–40) | – | – | – |" in reproduce("small", "--markdown").out


TABLE = """\
**Figure 2: perplexity by states**

| model | train, paper | train, ours | valid, paper | valid, ours | runs | seconds |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| HMM 2^4 | 38 | 33.0 | – | 40.0 | 1 | 12 |
"""


def test_markdown(reproduce, measured):
    measured("hmm", 40.0, train={"perplexity": 33.0})
    assert reproduce("small/figure2", "--markdown").out == TABLE
    both = reproduce("small", "--markdown").out
    assert both.startswith("**Table 1: perplexity**\n") and both.endswith("|\n\n" + TABLE)
    assert "\n| model | corpus | params, paper |" in both


def test_write_docs(reproduce, refused, measured, tmp_path):
    measured("hmm", 40.0, train={"perplexity": 33.0})
    path = tmp_path / "docs.md"
    flags = ("--write-docs", path)
    assert "there is no document" in refused("small/figure2", *flags)
    path.write_text("# Text\n<!-- begin small/figure2 -->\nold\n")
    said = refused("small/figure2", *flags)
    assert "docs.md lacks the mark <!-- end small/figure2 --> of small/figure2" in said
    path.write_text(
        "# Text\n<!-- begin small/figure2 -->\nold\n<!-- end small/figure2 -->\nafter\n"
    )
    for _ in range(2):  # what was written can be replaced again
        done = reproduce("small/figure2", *flags)
        assert done.status == 0 and "wrote" in done.err and "Figure 2" in done.out
        begin, end = "<!-- begin small/figure2 -->\n", "<!-- end small/figure2 -->\nafter\n"
        assert path.read_text() == f"# Text\n{begin}{TABLE}{end}"
    before = path.read_text()
    assert "lacks the mark <!-- begin small/table1 -->" in refused("small", *flags)
    assert path.read_text() == before
