"""The average of the parameters: its value, and that it is what is validated and saved."""

import pytest
import torch

from bighmm.base.tensor_files import TensorFile
from bighmm.data.corpus import prepare
from bighmm.lm.opening import open_model
from bighmm.train.averaging import Average
from bighmm.train.recipe import from_dict
from bighmm.train.run import train_run
from watching import losses


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("averaging") / "text.txt"
    path.write_text("\n".join(f"w{i % 7} w{i % 5} w{i % 3}" for i in range(120)))
    return path


def test_it_is_the_weighted_mean_of_all_steps():
    module, values = torch.nn.Linear(3, 2).double(), []
    average = Average(module, 0.8)
    with average.in_place():
        pass
    for _ in range(4):
        torch.nn.init.normal_(module.weight)
        values.append(module.weight.detach().clone())
        average.add()
    weights = torch.tensor([0.8**i for i in (3, 2, 1, 0)]).double()
    expected = (torch.stack(values) * (weights / weights.sum()).view(-1, 1, 1)).sum(0)
    address = module.weight.data_ptr()
    with average.in_place():
        torch.testing.assert_close(module.weight.detach(), expected)
        assert module.weight.data_ptr() == address  # a captured graph knows it
    assert torch.equal(module.weight, values[-1])


def test_parameters_are_put_back_after_an_error():
    module = torch.nn.Linear(3, 2)
    average = Average(module, 0.5)
    average.add()
    torch.nn.init.zeros_(module.weight)
    with pytest.raises(KeyError), average.in_place():
        raise KeyError
    assert not module.weight.any()


def recipe(text, averaging, **model):
    return from_dict(
        {
            "corpus": {"data": str(text)},
            "model": {"family": "lstm"} | model,
            "options": {"width": 8},
            "training": {
                **{"epochs": 1, "batch": 4, "window": 8, "state_dropout": 0.0},
                **{"averaging": averaging, "checks_per_epoch": 1},
            },
        },
        "here",
    )


@pytest.mark.parametrize("model", [{}, {"family": "hmm", "states": 8, "blocks": 4}])
def test_the_average_is_validated_and_saved(text, tmp_path, model):
    plain, averaged = tmp_path / "plain", tmp_path / "averaged"
    results = {
        run: train_run(run, recipe(text, decay, **model))
        for run, decay in ((plain, 0.0), (averaged, 0.9))
    }
    assert losses(plain) == losses(averaged)  # training does not depend on it
    tensors = TensorFile(averaged / "checkpoint" / "tensors.safetensors")
    total = 1 - 0.9 ** int(tensors["average.steps"])
    saved = TensorFile(averaged / "model" / "model.safetensors")
    for name in (name for name in tensors if name.startswith("average.sum.")):
        short = name.removeprefix("average.sum.")
        torch.testing.assert_close(saved[short], tensors[name] / total)
        assert not torch.equal(saved[short], tensors[f"model.{short}"])
    found = open_model(averaged).perplexity(prepare(text), split="valid").perplexity
    assert found == pytest.approx(results[averaged]["valid"]["perplexity"])
    assert found != pytest.approx(results[plain]["valid"]["perplexity"], rel=1e-6)
    assert "average.steps" not in TensorFile(plain / "checkpoint" / "tensors.safetensors")


@pytest.mark.parametrize("wrong", [-0.1, 1.0, float("nan")])
def test_wrong_decays(text, wrong):
    with pytest.raises(ValueError, match="averaging must be from 0 to below 1"):
        recipe(text, wrong)


def test_baum_welch_has_none():
    settings = {"optimizer": "baum-welch", "state_dropout": 0.0, "averaging": 0.9}
    with pytest.raises(ValueError, match="averaging is for gradient descent"):
        from_dict({"model": {"parameterisation": "scalar"}, "training": settings}, "here")
