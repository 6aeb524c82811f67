"""TABLE.jsonl: one run per line, stored once, by many writers, and whole after a kill."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from papers.results import EVAL_BATCH, read_results, store_result
from papers.rows import read_paper

ROOT = Path(__file__).resolve().parents[2]


def record(valid):
    """What `record_of` makes of a run, as far as it is read."""
    return {
        "recipe": {"training": {"epochs": 1.0}},
        "num_parameters": 5,
        "seconds": 1.0,
        "valid": {"perplexity": valid},
        "test": {"perplexity": valid},
        "valid_curve": [],
    }


@pytest.fixture
def paper(root):
    return read_paper(root, "small")


def test_a_run_of_two_tables_is_stored_once(paper, small, lines):
    both = [row for row in paper.rows if row.recipe == "hmm"]
    assert len(both) == 2 and both[0] != both[1]
    for row, valid in zip(both, (40.0, 41.0), strict=True):
        assert store_result(paper, row, 1, record(valid)) == small / "results" / "table1.jsonl"
    (run,) = lines()
    assert [run[key] for key in ("recipe", "corpus", "seed")] == ["hmm", "words", 1]
    assert run["settings"] == {"training": {"epochs": 1.0}} and run["valid"]["perplexity"] == 41.0
    results = read_results(paper)
    assert all(results.figures(row)["valid"] == 41.0 for row in both)


def test_a_run_is_replaced_where_it_was(paper, small, lines, measured):
    """Also where rows.toml had its tables in another order once."""
    measured("hmm", 40.0, table="figure2")
    measured("hmm", 50.0, seed=2, table="figure2")
    store_result(paper, paper.rows[2], 1, record(41.0))
    assert [run["valid"]["perplexity"] for run in lines("figure2")] == [41.0, 50.0]
    assert not (small / "results" / "table1.jsonl").exists()


def test_other_lines_stay_as_they_were(paper, small, measured):
    measured("hmm", 40.0)
    path = small / "results" / "table1.jsonl"
    path.write_text(path.read_text().replace(", ", " ,  ") + "\n")
    before = path.read_text()
    store_result(paper, paper.rows[0], 1, record(30.0))
    assert path.read_text().startswith(before) and path.read_text().count("\n") == 3


def test_writers_at_the_same_time(paper, small, lines):
    """Threads of one process, and another process."""
    code = """
for seed in range(100, 200):
    store_result(paper, paper.rows[0], seed, record(1.0))
    print(seed, flush=True)
"""
    other = start(paper, code, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"100\n"
    threads = [
        threading.Thread(target=store_result, args=(paper, row, seed, record(1.0)))
        for seed in range(20)
        for row in paper.rows[2:4]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.communicate()
    assert other.returncode == 0
    assert len(lines()) == len(read_results(paper).runs) == 100 + 20 * 2


@pytest.mark.parametrize(
    "death",
    [
        "files._flush_file = lambda path: (os.truncate(path, 9), die())",
        "Path.replace = lambda path, target: die()",
    ],
    ids=["half written", "not renamed"],
)
def test_a_killed_write_leaves_the_old_lines(paper, small, measured, death):
    measured("hmm", 40.0)
    path = small / "results" / "table1.jsonl"
    before = path.read_bytes()
    code = f"""
import os, signal
from bighmm.base import files
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
{death}
store_result(paper, paper.rows[0], 1, record(30.0))
"""
    assert start(paper, code).wait() == -signal.SIGKILL
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 3  # and a lock
    assert list(read_results(paper).runs) == [("hmm", "words", 1)]
    store_result(paper, paper.rows[0], 1, record(30.0))
    assert len(read_results(paper).runs) == 2 and list(path.parent.iterdir()) == [path]


def start(paper, code, **options):
    """Run code in another process that has read the same paper."""
    begin = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from test_stored_results import read_paper, record, store_result
paper = read_paper(Path({str(paper.root)!r}), "small")
"""
    return subprocess.Popen([sys.executable, "-c", begin + code], **options)


def test_damaged_files(refused, measured, small):
    measured("hmm", 40.0)
    path = small / "results" / "table1.jsonl"
    whole = path.read_text()
    for line, said in (
        ("{}", "line 2 does not hold the result of a run: it has no 'valid'"),
        ("[]", "line 2 does not hold the result of a run"),
        ("{", "line 2 is damaged: "),
        (whole, "line 2 is a run that "),
        (whole.replace('"seed": 1,', '"seed": "1",'), "line 2: seed = '1' does not name a run"),
    ):
        path.write_text(whole + line)
        assert said in refused("small")
    path.write_text(whole)
    for content in ('{"recipe": "hmm"}', '[{"recipe": "hmm"}]'):
        (small / "results" / EVAL_BATCH).write_text(content)
        assert 'is not a list of objects with "recipe" and "ms"' in refused("small")


def test_nothing_is_added_to_a_damaged_file(paper, small):
    (small / "results").mkdir()
    path = small / "results" / "table1.jsonl"
    path.write_text('{"half')
    with pytest.raises(ValueError, match=r"table1\.jsonl, line 1 is damaged"):
        store_result(paper, paper.rows[0], 1, record(30.0))
    assert path.read_text() == '{"half'
