"""Tables of papers with our figures beside them, and the runs that they lack.

PAPER/rows.toml             the tables, the paper's figures and its claims (`rows`, `claims`)
PAPER/recipes/NAME.toml     how the model of a row is trained (`runs`)
PAPER/results/TABLE.jsonl   what was measured, one run per line (`record`, `results`)

Folders of the checkout that belong to it and are not in git: runs/PAPER/ for the runs, labels/ and
models/ for what recipes are initialised with, and written/ for text of teachers (`prepare`).
The command is in `command`.
"""
