"""A paper's tables with our figures beside them, from the files of a checkout.

recipes/PAPER/rows.toml   the tables and what the paper printed in them (`rows`), and what it says
                          of its figures (`claims`)
recipes/PAPER/NAME.toml   how the model of a row is trained (`runs`)
labels/, models/          what recipes begin with (`prepare`)
results/PAPER/*.json      what was measured (`record` makes such a file, `results` reads it)
runs/PAPER/               the runs themselves
"""
