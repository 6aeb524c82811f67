"""Recipes: what a file may say, and what is said of a wrong one."""

import json
import subprocess
import sys

import pytest

from bighmm.lm.options import NgramOptions
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.params.scalar import ScalarOptions
from bighmm.train.recipe import (
    QUICKSTART,
    CorpusSettings,
    InitialSettings,
    ModelSettings,
    Recipe,
    TrainingSettings,
    differences,
    find_recipe,
    from_dict,
    located,
    packaged_recipes,
    read_recipe,
)


def read(tmp_path, text):
    path = tmp_path / "r.toml"
    path.write_text(text, encoding="utf-8")
    return read_recipe(path)


def wrong(message, **sections):
    with pytest.raises(ValueError, match=message) as error:
        from_dict(sections, "r.toml")
    assert "\n" not in str(error.value)


def test_a_file_names_what_differs(tmp_path):
    recipe = read(
        tmp_path,
        """
        [corpus]
        data = "some/text.txt"
        min_count = 2
        lowercase = true

        [model]
        states = 256
        blocks = 16

        [parameters]
        width = 32
        entering = "mlp"

        [training]
        epochs = 3
        schedule = "plateau"
        """,
    )
    assert recipe.corpus == CorpusSettings("some/text.txt", min_count=2, lowercase=True)
    assert recipe.model == ModelSettings(states=256, blocks=16)
    assert recipe.options == NeuralOptions(width=32, entering="mlp")
    assert recipe.training == TrainingSettings(epochs=3.0, schedule="plateau")
    assert isinstance(recipe.training.epochs, float)


def test_an_empty_file_is_the_default(tmp_path):
    assert read(tmp_path, "") == Recipe()
    assert Recipe().options == NeuralOptions()


def test_a_file_may_name_what_differs_from_another(tmp_path):
    (tmp_path / "set").mkdir()
    base = tmp_path / "set" / "base.toml"
    base.write_text('[model]\nstates = 64\nsupport = "dense"\n[training]\nlr = 0.1\nbatch = 3')
    (tmp_path / "more.toml").write_text('like = "set/base.toml"\n[training]\nlr = 0.2')
    text = 'like = "more.toml"\n[model]\nstates = 8\n[parameters]\nwidth = 4'
    recipe = read(tmp_path, text)
    assert recipe.model == ModelSettings(states=8, support="dense")
    assert recipe.training == TrainingSettings(lr=0.2, batch=3)
    assert recipe.options == NeuralOptions(width=4)


def test_names_of_the_first_version(tmp_path):
    text = 'like = "more.toml"\n[model]\nparameters = "scalar"\nsupport = "free"\nalive = 3\n'
    text += '[parameters]\ninit_scale = 2\n[training]\noperands = "float32"'
    (tmp_path / "more.toml").write_text("[model]\nstates = 8")
    recipe = read(tmp_path, text)
    model = ModelSettings(
        states=8, support="per-token", states_per_token=3, parameterisation="scalar"
    )
    assert recipe.model == model and recipe.options == ScalarOptions(init_scale=2.0)
    assert recipe.training.matmul_dtype == "float32"
    assert from_dict(recipe.to_dict(), "again") == recipe


def test_a_file_like_another_that_is_wrong(tmp_path):
    with pytest.raises(ValueError, match=r"no recipe .*none\.toml, which .*r\.toml extends"):
        read(tmp_path, 'like = "none.toml"')
    with pytest.raises(ValueError, match="extends names another recipe's file, not 3"):
        read(tmp_path, "like = 3")
    with pytest.raises(ValueError, match="which then extends itself"):
        read(tmp_path, 'like = "r.toml"')
    (tmp_path / "other.toml").write_text('like = "r.toml"')
    with pytest.raises(ValueError, match="which then extends itself"):
        read(tmp_path, 'like = "other.toml"')
    (tmp_path / "other.toml").write_text("[model]\nstates = 8")
    with pytest.raises(ValueError, match=r"r\.toml \[model\] must be a section, not 5"):
        read(tmp_path, 'model = 5\nlike = "other.toml"')


def test_options_belong_to_the_parameterisation(tmp_path):
    text = '[model]\nparameters = "scalar"\n[parameters]\ninit_scale = 2'
    assert read(tmp_path, text).options == ScalarOptions(init_scale=2.0)
    with pytest.raises(ValueError, match="unknown field 'width'; known are init_scale"):
        read(tmp_path, '[model]\nparameters = "scalar"\n[parameters]\nwidth = 2')
    scalar = Recipe(model=ModelSettings(parameterisation="scalar"))
    assert scalar.options == ScalarOptions()


def test_unreadable_files(tmp_path):
    with pytest.raises(ValueError, match=r"there is no recipe .*none\.toml"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(ValueError, match=r"r\.toml cannot be read"):
        read(tmp_path, "[model\nstates = 1")
    (tmp_path / "bytes.toml").write_bytes(b'data = "\xff"')
    with pytest.raises(ValueError, match=r"bytes\.toml cannot be read"):
        read_recipe(tmp_path / "bytes.toml")
    with pytest.raises(ValueError, match="cannot be read"):
        read_recipe(tmp_path)


def test_packaged_recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    states = {name: find_recipe(name).model.states for name in packaged_recipes()}
    assert states == {
        "distill-cpu": 512,
        "distill-gpu": 4096,
        "ptb-32768": 32768,
        "ptb-4096": 4096,
        "ptb-awd-lstm": 4096,
        "ptb-recurrent-hmm": 4096,
        "quickstart": 4096,
        "wikitext2-awd-lstm": 4096,
    }
    quickstart = find_recipe(QUICKSTART)
    assert quickstart.corpus.data == "pydoc" and quickstart != Recipe()
    (tmp_path / "quickstart").mkdir()  # a folder is no recipe
    assert find_recipe(QUICKSTART) == quickstart


def test_a_file_goes_before_the_packaged_recipe_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("[model]\nstates = 256")
    assert find_recipe(QUICKSTART).model.states == 256
    (tmp_path / "quickstart").write_text("[model")
    with pytest.raises(ValueError, match="the recipe quickstart cannot be read"):
        find_recipe(QUICKSTART)


@pytest.mark.parametrize("name", ["quickstrat", "quickstart.toml", "recipes/quickstart", "../x"])
def test_neither_a_file_nor_a_packaged_recipe(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:
        find_recipe(name)
    said = "did you mean quickstart?"
    if name == "../x":
        said = f"name a file, or a packaged recipe: {', '.join(packaged_recipes())}"
    assert str(error.value) == f"there is no recipe {name}; {said}"


def test_packaged_recipes_need_no_torch():
    code = "import sys; from bighmm.train.recipe import find_recipe; find_recipe('quickstart')\n"
    code += "print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_unknown_names_are_answered_with_a_suggestion():
    wrong(
        r"r\.toml \[model\] has an unknown field 'state'; did you mean 'states'", model={"state": 1}
    )
    wrong("unknown field 'xyz'; known are data, tokenizer", corpus={"xyz": 1})
    wrong("unknown field 'widht'; did you mean 'width'", options={"widht": 1})
    wrong(r"unknown section \[trainning\]; did you mean 'training'", trainning={})
    wrong(r"unknown section \[option\]; did you mean 'options'", option={})
    wrong(
        r"unknown section \[xyz\]; known are corpus, model, training, initial, mixed, options",
        xyz={},
    )
    wrong(
        "no parameterisation 'nural'; choose from .*neural, .*scalar",
        model={"parameterisation": "nural"},
    )


@pytest.mark.parametrize(
    "section, key, value, kind",
    [
        ("model", "states", "many", "int"),
        ("model", "states", 4096.0, "int"),
        ("model", "states", True, "int"),
        ("model", "states", [1], "int"),
        ("corpus", "data", 3, "str"),
        ("corpus", "min_count", 2.5, "int | None"),
        ("corpus", "lowercase", "yes", "bool | None"),
        ("training", "lr", "fast", "float"),
        ("training", "lr", False, "float"),
        ("training", "batches", 3, r"streams \| ordered \| rotated \| sentences \| windows"),
        ("options", "entering", "network", r"embedding \| mlp"),
    ],
)
def test_wrong_kind_of_value(section, key, value, kind):
    wrong(rf"\[{section}\]: {key} = .* is not of the kind {kind}", **{section: {key: value}})


def test_a_section_is_a_section():
    wrong(r"\[model\] must be a section, not 3", model=3)
    wrong(r"\[options\] must be a section, not 'neural'", options="neural")


@pytest.mark.parametrize(
    "section, values, message",
    [
        ("model", {"states": 0}, "states must be at least 1, not 0"),
        (
            "model",
            {"states": 100, "blocks": 64},
            "100 states .* by 64 blocks; use a multiple of 64",
        ),
        ("model", {"blocks": 0}, "blocks must be a number of at least 1, or words, not 0"),
        ("model", {"support": "free", "alive": 0}, "states_per_token must be at least 1"),
        ("training", {"batch": 0}, "batch must be at least 1"),
        ("training", {"window": -3}, "window must be at least 1, not -3"),
        (
            "training",
            {"checks_per_epoch": 0},
            "^checks_per_epoch must be finite and above 0, not 0",
        ),
        ("training", {"state_dropout": 1}, "^state_dropout must be from 0 to below 1, not 1.0"),
        ("training", {"state_dropout": -0.1}, "state_dropout"),
        ("training", {"state_dropout": float("nan")}, "state_dropout"),
        ("training", {"epochs": 0}, "^epochs must be finite and above 0, not 0.0$"),
        ("training", {"epochs": float("inf")}, "must be finite"),
        ("training", {"lr": 0}, "must be finite and above 0"),
        ("training", {"lr": float("nan")}, "must be finite and above 0"),
        ("training", {"plateau_factor": 0}, "must be finite and above 0"),
        ("training", {"clip": -1}, "^clip must be at least 0, not -1"),
        ("training", {"warmup": 1.5}, "^warmup must be from 0 to 1, not 1.5$"),
        ("training", {"final_lr": -0.5}, "^final_lr must be from 0 to 1"),
    ],
)
def test_wrong_values(section, values, message):
    wrong(message, **{section: values})


def test_blocks_do_not_matter_without_them():
    recipe = from_dict({"model": {"states": 100, "support": "dense"}}, "r.toml")
    assert recipe.model.states == 100


def test_limits_are_allowed():
    settings = {"state_dropout": 0, "clip": 0, "warmup": 1, "final_lr": 1, "window": 1, "batch": 1}
    assert from_dict({"training": settings}, "r.toml").training.clip == 0.0


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(
            corpus=CorpusSettings("x", tokenizer="t.json"),
            model=ModelSettings(
                states=6, support="per-token", states_per_token=2, parameterisation="scalar"
            ),
            options=ScalarOptions(init_scale=0.5),
            training=TrainingSettings(epochs=0.25, batches="sentences", seed=9),
        ),
    ],
    ids=["default", "scalar"],
)
def test_round_trip(recipe):
    through_json = json.loads(json.dumps(recipe.to_dict()))
    assert from_dict(through_json, "recipe.json") == recipe


def test_differences():
    old = Recipe()
    new = Recipe(
        corpus=CorpusSettings("x"),
        options=NeuralOptions(width=64),
        training=TrainingSettings(lr=0.5),
    )
    assert differences(old, old) == []
    assert differences(old, new) == [
        "corpus.data (pydoc, x)",
        "options.width (256, 64)",
        "training.lr (0.01, 0.5)",
    ]


def test_differences_between_parameterisations():
    found = differences(Recipe(), Recipe(model=ModelSettings(parameterisation="scalar")))
    assert "model.parameterisation (neural, scalar)" in found
    assert "options.width (256, None)" in found
    assert "options.init_scale (0.1, 1.0)" in found


def test_changed():
    recipe = Recipe().changed(model={"states": 64, "blocks": 16}, options={"width": 8})
    assert (recipe.model.states, recipe.options.width, recipe.training) == (
        64,
        8,
        Recipe().training,
    )
    assert recipe.changed(training={"epochs": 3}).options.width == 8
    scalar = recipe.changed(model={"parameterisation": "scalar"}, options={"init_scale": 0.5})
    assert scalar.options == ScalarOptions(0.5) and scalar.model.states == 64
    assert scalar.changed(model={"family": "ngram"}).options == NgramOptions()
    with pytest.raises(ValueError, match=r"the changed recipe \[model\] has an unknown field"):
        recipe.changed(model={"stats": 3})
    with pytest.raises(ValueError, match=r"the changed recipe has an unknown section \[modle\]"):
        recipe.changed(modle={"states": 3})
    with pytest.raises(ValueError, match="use a multiple of 16"):
        recipe.changed(model={"states": 63})


def test_a_file_that_is_nested_too_deeply_or_has_no_end(tmp_path):
    (tmp_path / "deep.toml").write_text("a = " + "[\n" * 10**4)
    with pytest.raises(ValueError, match=r"deep\.toml cannot be read: it is nested too deeply"):
        read_recipe(tmp_path / "deep.toml")
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"endless\.toml is larger than"):
        read_recipe(tmp_path / "endless.toml")
    (tmp_path / "class.toml").write_text("[initial]\nFOLDERS = 3")
    with pytest.raises(ValueError, match="unknown field 'FOLDERS'"):
        read_recipe(tmp_path / "class.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + ".".join("a" * 3000) + "]", "line 1 has more than 4,096 characters"),
        ("\n" + ".".join("a" * 3000) + " = 1", "line 2 has more than 4,096 characters"),
        ("# a comment\n" * 10_000, "is larger than 65,536 bytes"),
        (f"[training]\nepochs = {'9' * 4000 * 2}", "line 2 has more than 4,096 characters"),
    ],
    ids=range(4),
)
def test_files_that_take_long_to_parse(tmp_path, text, reason):
    with pytest.raises(ValueError, match=rf"the recipe .*r\.toml cannot be read: .*{reason}"):
        read(tmp_path, text)


def test_numbers_with_too_many_digits(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"r\.toml \[training\]: seed = .* is not of the kind int"):
        read(tmp_path, f"[training]\nseed = 0x{'f' * 4000}")
    monkeypatch.setattr("bighmm.train.recipe.LONGEST_LINE", 10_000)
    with pytest.raises(ValueError, match=r"r\.toml cannot be read: a number has too many digits$"):
        read(tmp_path, f"[training]\nepochs = {'9' * 5000}")


def test_recipes_that_extend_others_without_end(tmp_path):
    for number in range(2000):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"\n')
    with pytest.raises(ValueError, match=r"0\.toml extends more than 32 others"):
        read_recipe(tmp_path / "0.toml")


def test_located(tmp_path, monkeypatch):
    """Names of what is there become absolute paths; others stay as they are."""
    for name in ("text.txt", "words.paths", "pydoc", "labels"):
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = Recipe(
        corpus=CorpusSettings(data="../text.txt"),
        model=ModelSettings(paths="~/words.paths"),
        initial=InitialSettings(labels=str(tmp_path / "labels"), head="someone/model"),
    )
    monkeypatch.chdir(tmp_path / "below")
    for found in (located(asked), located(asked, tmp_path / "below"), located(located(asked))):
        assert found.corpus.data == str(tmp_path / "text.txt")
        assert found.model.paths == str(tmp_path / "words.paths")
        assert found.initial == asked.initial and found.training == asked.training
    monkeypatch.chdir(tmp_path)
    assert located(asked).corpus.data == "../text.txt"  # which is not there
    assert located(Recipe()).corpus.data == "pydoc"
