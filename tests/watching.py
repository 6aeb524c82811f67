"""What tests of training share: an observer that remembers, and what a run has logged."""

import json


class Watcher:
    def __init__(self):
        self.reports, self.checks, self.sentences = [], [], []

    def stepped(self, report):
        self.reports.append(report)

    def checked(self, report, valid, best):
        self.checks.append((report.step, valid, best))

    def said(self, sentence):
        self.sentences.append(sentence)

    @property
    def perplexities(self):
        return [valid.perplexity for _, valid, _ in self.checks]


def logged(run, kind):
    """The entries of RUN/log.jsonl of this kind."""
    lines = (run / "log.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def losses(run):
    return [entry["loss"] for entry in logged(run, "step")]
