"""A fuzzer: damaged files, odd texts and arguments, random models and rules, all from a seed.

    python -m tests.fuzz --cases 10000            all kinds of attack
    python -m tests.fuzz --only files --case 17   one case again, with all that it did

Each case must give the same answer as the undamaged thing, or one sentence (status 2; a ValueError
in the library), within limits of time and memory. Anything else is a failure.

- `outcome`: runs a case in a process of its own, with limits.
- `originals`: the undamaged files and folders with the questions about each; `folders`,
  `sequence_folders` and `inputs` write them.
- `mutations`: damage to files.
- `files`, `texts`, `arguments`, `models`, `rules`, `expressions`: one kind of attack each.
"""
