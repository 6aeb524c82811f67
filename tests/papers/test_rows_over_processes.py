"""Rows of a paper over several processes, which threads stand in for."""

import itertools
import threading
from types import SimpleNamespace

from bighmm.base.processes import Processes
from papers.jobs import Files
from papers.several import environment, share_jobs

COUNT = 3


class Table:
    """Where threads that play processes leave objects for each other."""

    def __init__(self):
        self.barrier, self.turns = threading.Barrier(COUNT, timeout=20), itertools.count()
        self.objects = [None] * COUNT


class Played(Processes):
    table: Table

    def from_each(self, value):
        self.table.objects[self.number] = value
        self.table.barrier.wait()
        found = list(self.table.objects)
        self.table.barrier.wait()
        return found

    def from_first(self, value):
        return self.from_each(value)[0]

    def next_turn(self, name):
        return next(self.table.turns)


def test_rows_are_shared():
    rows = [SimpleNamespace(name=f"row{i}", needs=()) for i in range(7)]
    mixed = SimpleNamespace(name="mixed", needs=("runs/paper/row2",))
    paper = SimpleNamespace(name="paper", root=None, runs=None)
    done, failures, lock, table = [], [None] * COUNT, threading.Lock(), Table()

    def work(number):
        here = Played(number, COUNT)
        object.__setattr__(here, "table", table)

        def run(jobs, with_folders):
            with lock:
                done.extend([("folders", number)] if with_folders else [])
                done.extend((job.name, number) for job in jobs)
            return [job.name for job in jobs if job.name == "row4"]

        failures[number] = share_jobs(here, paper, [mixed, *rows], Files({}, {}), run)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [["row4"]] * COUNT
    assert done[0] == ("folders", 0) and done[-1] == ("mixed", 0)
    assert sorted(name for name, _ in done[1:-1]) == [row.name for row in rows]


def test_a_run_knows_nothing_of_the_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    found = environment()
    assert found["CUDA_VISIBLE_DEVICES"] == "7" and "WORLD_SIZE" not in found
    monkeypatch.delenv("WORLD_SIZE")
    assert environment()["CUDA_VISIBLE_DEVICES"] == "5,7"
