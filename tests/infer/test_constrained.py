"""Rules about what follows, against the sum over all sequences."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm import constraints as c
from bighmm.hmm import HMM
from bighmm.infer import acceptance
from bighmm.infer.reference import log_prob_loop
from bighmm.ops import memory
from infer.rules.test_automaton import ruled
from infer.test_sampling import all_sequences, assert_drawn_from
from models import KINDS, cut_work, random_hmm

SIZE = 4
RULES = {
    "contains": c.contains([[1, 2], [2]]),
    "overlapping": c.contains([[1, 2], [2, 1]]),
    "in_order": c.in_order([[1], [2], [1]]),
    "excludes": c.excludes([[1, 1], [3]]),
    "starts": c.starts_with([2, 0]),
    "ends": c.ends_with([0, 1]),
    "length": c.length(2, 4),
    "too-long": c.length(9),
    "regex": c.regex("(1 | 0 2)* [^ 1] .?"),
    "automaton": c.automaton([[0, 1, -1, 0], [1, 0, 1, 1]], accepting=[1]),
    "until": c.until(c.contains([[1]]), 0),
    "together": (c.contains([[1]]) | c.contains([[0]])) & ~c.ends_with([2]) & c.length(1),
    "one-then-other": c.excludes([[1]]) + c.starts_with([1, 2]) + c.length(0, 1),
    "nothing": c.contains([[1]]) & ~c.contains([[1]]),
    "anything": c.length(0),
}
PREFIXES = {"start": [], "prefix": [1, 2], "after-end": [3, 0]}


def model(kind, **options):
    return random_hmm(kind, states=6, vocabulary=SIZE, seed=7, **options)


def sequences_after(hmm, prefix, length):
    """Every continuation (N, length) with its probability."""
    if length == 0:
        return torch.zeros(1, 0).long(), torch.ones(1).double()
    every = all_sequences(hmm.vocabulary_size, length)
    before = torch.tensor(prefix, dtype=torch.long)
    whole = torch.cat([before.expand(len(every), -1), every], 1)
    return every, (hmm.log_prob(whole) - hmm.log_prob(before.unsqueeze(0))).exp().double()


def satisfy(rule, sequences):
    return torch.tensor([rule.matches(row) for row in sequences.tolist()])


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("kind", KINDS)
class TestEnumeration:
    @pytest.mark.parametrize("reset", [True, False])
    def test_log_prob(self, kind, prefix, reset):
        hmm = model(kind, reset=reset)
        for length in (0, 1, 4):
            every, probs = sequences_after(hmm, prefix, length)
            for rule in RULES.values():
                got = hmm.rule_log_prob(rule, length, prefix)
                assert got.shape == () and not got.isnan()
                expected = probs[satisfy(rule, every)].sum()
                torch.testing.assert_close(got.exp(), expected, msg=f"{rule} of {length}")

    @pytest.mark.parametrize("remaining", [1, 3])
    def test_next_token(self, kind, prefix, remaining):
        hmm = model(kind)
        every, probs = sequences_after(hmm, prefix, remaining)
        for rule in RULES.values():
            holds = probs * satisfy(rule, every)
            first = torch.zeros(SIZE).double().index_add(0, every[:, 0], holds)
            got = hmm.next_token([prefix], rule=rule, remaining=remaining)[0].exp()
            torch.testing.assert_close(got, first / holds.sum().clamp(min=1e-300))
            if holds.sum() > 0:
                assert float(got.sum()) == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(ruled, st.sampled_from(KINDS), st.lists(st.integers(0, 2), max_size=3), st.integers(0, 5))
def test_any_rule(case, kind, prefix, length):
    """p(rule | prefix), that it is a probability, and one step of its chain rule."""
    rule = case[0]
    hmm = random_hmm(kind, states=6, vocabulary=3, seed=len(prefix))
    every, probs = sequences_after(hmm, prefix, length)
    got = hmm.rule_log_prob(rule, length, prefix)
    assert 0 <= float(got.exp()) <= 1
    torch.testing.assert_close(got.exp(), probs[satisfy(rule, every)].sum())
    if length and got > -torch.inf:
        following = hmm.next_token([prefix], rule=rule, remaining=length)[0]
        assert float(following.exp().sum()) == pytest.approx(1)
        alone = hmm.next_token([prefix])[0]
        for x in range(3):
            later = hmm.rule_log_prob(rule.after([x]), length - 1, [*prefix, x])
            torch.testing.assert_close((alone[x] + later).exp(), (following[x] + got).exp())


def test_without_an_end_mark():
    hmm = random_hmm("blocked-table", vocabulary=SIZE, end=None)
    every, probs = sequences_after(hmm, [1], 3)
    for rule in RULES.values():
        got = hmm.rule_log_prob(rule, 3, [1])
        torch.testing.assert_close(got.exp(), probs[satisfy(rule, every)].sum())


def test_rows_of_a_batch():
    hmm = model("dense-flat")
    tokens, lengths = torch.tensor([[1, 2, 3], [0, -1, -1], [-1, -1, -1]]), torch.tensor([3, 1, 0])
    rule = RULES["together"]
    got = hmm.next_token(tokens, lengths, rule=rule, remaining=3)
    for row, n in enumerate(lengths.tolist()):
        alone = hmm.next_token(tokens[row : row + 1, :n], rule=rule, remaining=3)
        torch.testing.assert_close(got[row : row + 1], alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_float32_and_extreme_models(kind, scale):
    """Near-deterministic models lose mass in float32 products; none may be missed."""
    hmm = random_hmm(kind, states=12, vocabulary=6, scale=scale, seed=1, dtype=torch.float32, end=0)
    for rule in (c.contains([[1, 4], [2]]), c.excludes([[1], [2], [3]]), c.regex("3 (1 | 2)* 5 .")):
        for prefix in ([], [2, 5]):
            got = hmm.rule_log_prob(rule, 4, prefix)
            rows = [r for r in itertools.product(range(6), repeat=4) if rule.matches(r)]
            before = log_prob_loop(hmm, prefix)
            exact = torch.tensor([log_prob_loop(hmm, [*prefix, *r]) for r in rows]).double()
            expected = exact.logsumexp(0) - before
            torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-3)
            assert hmm.sample(20, 4, prefix, rule=rule).shape == (20, 4)


def test_in_small_pieces(monkeypatch):
    before = {kind: answers(model(kind)) for kind in KINDS}
    cut_work(monkeypatch, 30)
    monkeypatch.setattr(memory, "RULE_TABLES", 30)
    for kind in KINDS:
        for one, other in zip(before[kind], answers(model(kind)), strict=True):
            torch.testing.assert_close(one, other)
        rules = [RULES["together"], RULES["starts"]] * 20
        sample = model(kind).sample(40, 4, rule=rules)
        assert all(rule.matches(row) for rule, row in zip(rules, sample.tolist(), strict=True))


def answers(hmm):
    rule = RULES["together"]
    return hmm.rule_log_prob(rule, 5, [1]), hmm.next_token([[1]], rule=rule, remaining=5)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_a_length(kind, prefix):
    hmm = model(kind)
    every, probs = sequences_after(hmm, prefix, 4)
    for name in ("contains", "regex", "together"):
        holds = satisfy(RULES[name], every)
        generator = torch.Generator().manual_seed(3)
        sample = hmm.sample(1500, 4, prefix, generator, rule=RULES[name])
        assert satisfy(RULES[name], sample[:50]).all()
        assert_drawn_from(sample, every[holds], probs[holds] / probs[holds].sum())


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", ["dense-table", "blocked-flat", "per_token-flat"])
def test_samples_up_to_the_end_mark(kind, reset):
    """The rule is about what stands before the mark, which is among the tokens."""
    hmm = model(kind, reset=reset)
    rule = c.contains([[1]]) & c.length(0, 3)
    sample = hmm.sample(1500, rule=rule, generator=torch.Generator().manual_seed(5), max_length=6)
    assert sample.shape[1] == 4  # a text has at most three tokens and its mark
    every, probs = sequences_after(hmm, [], 4)
    ended = (every == 0).cumsum(1) > 0
    texts = torch.where(ended, 0, every)
    holds = satisfy(c.until(rule, 0), every)
    weights = SIZE ** torch.arange(4)
    keys, which = (texts[holds] * weights).sum(1).unique(return_inverse=True)
    total = torch.zeros(len(keys)).double().index_add(0, which, probs[holds])
    distinct = keys.unsqueeze(1) // weights % SIZE
    assert_drawn_from(sample, distinct, total / total.sum())


@pytest.mark.parametrize("temperature", [0.5, 2.0, 0.0])
@pytest.mark.parametrize("kind", ["dense-flat", "blocked-table", "per_token-flat"])
def test_temperature(kind, temperature):
    hmm = model(kind)
    rule = RULES["together"]
    every = all_sequences(SIZE, 3)
    probs = torch.ones(len(every)).double()
    for i, row in enumerate(every.tolist()):
        for t, token in enumerate(row):
            left = rule.after(row[:t])
            step = hmm.next_token([row[:t]], rule=left, remaining=3 - t)[0]
            if temperature:
                probs[i] *= (step / temperature).softmax(0)[token].nan_to_num(0)
            else:
                probs[i] *= int(step.argmax()) == token and step[token] > -torch.inf
    generator = torch.Generator().manual_seed(3)
    sample = hmm.sample(800, 3, generator=generator, temperature=temperature, rule=rule)
    if temperature:
        assert_drawn_from(sample, every[probs > 0], probs[probs > 0])
    else:
        assert torch.equal(sample, every[probs == 1].expand_as(sample))


@pytest.mark.parametrize("kind", ["dense-table", "blocked-flat"])
def test_a_rule_for_each_row(kind):
    hmm = model(kind)
    chosen = [RULES[name] for name in ("contains", "regex", "excludes")]
    sample = hmm.sample(4500, 4, rule=chosen * 1500, generator=torch.Generator().manual_seed(2))
    every, probs = sequences_after(hmm, [], 4)
    for number, rule in enumerate(chosen):
        holds = satisfy(rule, every)
        assert_drawn_from(sample[number::3], every[holds], probs[holds] / probs[holds].sum())
    for row in sample[:60].tolist():
        assert any(rule.matches(row) for rule in chosen)


def test_reproducible():
    hmm, rules = model("blocked-flat"), [RULES["together"], RULES["ends"]] * 5

    def drawn(seed):
        return hmm.sample(10, 6, generator=torch.Generator().manual_seed(seed), rule=rules)

    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))


def random_rule(draw):
    """Keywords, a length and a pattern, of which every HMM here has texts."""
    some = [[draw.randrange(1, 12) for _ in range(draw.choice([1, 1, 2]))] for _ in range(2)]
    rule = draw.choice([c.contains, c.in_order])(some) & c.length(draw.randrange(4, 8), 14)
    if draw.random() < 0.5:
        rule &= c.regex(f"[1 2 3 4 5 6]* .{{2}} .* [{' '.join(map(str, range(2, 12)))}]")
    if draw.random() < 0.5:
        rule &= ~c.contains([[draw.randrange(12, 20)], [draw.randrange(12, 20)]])
    return rule


@pytest.mark.parametrize("kind", ["dense-table", "blocked-flat"])
def test_hundreds_of_texts_each_with_its_own_rule(kind):
    """Five hundred texts of each of two models, all under random rules."""
    hmm = random_hmm(kind, states=24, vocabulary=20, seed=1, dtype=torch.float32, scale=2.0)
    draw = random.Random(kind)
    rules = [random_rule(draw) for _ in range(200)]
    texts = hmm.sample(500, rule=rules * 2 + rules[:100], max_length=16).tolist()
    for rule, text in zip(rules * 2 + rules[:100], texts, strict=True):
        assert rule.compile(20).accepts(text[: text.index(0)]), rule
    assert all(
        rule.matches(text[: text.index(0)]) for rule, text in zip(rules[:9], texts, strict=False)
    )


class TestImpossible:
    """-inf and no NaN, and one sentence before anything is drawn."""

    HMM = HMM.from_probs(
        torch.tensor([1.0, 0.0]),
        torch.tensor([[0.5, 0.5], [0.0, 1.0]]),
        torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]),
        end=0,
    )  # never says 2

    @pytest.mark.parametrize(
        ("rule", "options", "said"),
        [
            (
                RULES["nothing"],
                {"length": 3},
                r"no sequence of tokens can satisfy .*contains\(\[\[",
            ),
            (c.length(4), {"length": 3}, r"length\(4\) needs at least 4 tokens, but exactly 3"),
            (c.length(1, 2), {"length": 3}, r"length\(1, 2\) cannot hold for exactly 3 tokens"),
            (
                c.contains([[1, 1, 1]]) & c.length(1),
                {"max_length": 3},
                r"rule contains\(\[\[1, 1, 1\]\]\) needs at least 3 tokens, but at most 2 tokens",
            ),
            (
                c.contains([[1, 1]]) & c.starts_with([0, 1, 0]),
                {"length": 4},
                r"contains.* & starts_with.* needs at least 5 tokens",
            ),
            (c.contains([[0]]), {"max_length": 3}, "probability zero in this HMM at the beginning"),
            (c.contains([[2]]), {"length": 3}, "probability zero in this HMM at the beginning"),
            (c.contains([[2]]), {"length": 3, "prefix": [1]}, "zero in this HMM after this prefix"),
            (c.contains([[9]]), {"length": 3}, "token id 9 .* is not in the vocabulary"),
            ([c.length(0)] * 3, {"length": 3}, "3 rules were given for 2 samples"),
            ([c.length(0), c.contains([[2]])], {"length": 3}, r"rule contains\(\[\[2\]\]\) has"),
        ],
    )
    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_sampling(self, rule, options, said, temperature):
        with pytest.raises(ValueError, match=said):
            self.HMM.sample(2, rule=rule, temperature=temperature, **options)

    def test_other_questions(self):
        for rule in (RULES["nothing"], c.contains([[2]]), c.length(9)):
            assert float(self.HMM.rule_log_prob(rule, 3)) == -torch.inf
            following = self.HMM.next_token([[1], [0]], rule=rule, remaining=3)
            assert (following == -torch.inf).all()
        assert float(self.HMM.rule_log_prob(c.length(0), 3, [2])) == -torch.inf
        following = self.HMM.next_token([[2], [1]], rule=c.length(0), remaining=3)
        assert (following[0] == -torch.inf).all() and following[1].exp().sum() == 1

    def test_requests(self):
        with pytest.raises(ValueError, match="0 or more tokens to come, not -1"):
            self.HMM.rule_log_prob(c.length(0), -1)
        for remaining in (None, 0):
            with pytest.raises(ValueError, match=f"at least 1, not {remaining}"):
                self.HMM.next_token([[1]], rule=c.length(0), remaining=remaining)
        with pytest.raises(ValueError, match="one sequence"):
            self.HMM.rule_log_prob(c.length(0), 1, [[1], [2]])

    def test_nothing_to_draw(self):
        assert self.HMM.sample(2, 0, rule=c.length(0)).shape == (2, 0)
        with pytest.raises(ValueError, match="needs at least 1 tokens"):
            self.HMM.sample(2, 0, rule=c.length(1))


def test_a_rule_about_the_length_costs_one_row_per_step():
    """Tables have rows for automaton states that matter only."""
    automaton = c.length(20).compile(5)
    assert acceptance.live_states(automaton, [0], 20).sum(1).tolist() == [1] * 21


@pytest.mark.parametrize("rules", [["x", "y"], [c.length(0), None]])
def test_what_is_no_rule(rules):
    with pytest.raises(ValueError, match=r"is not a rule; `bighmm\.constraints` makes them"):
        random_hmm("dense-table").sample(2, length=3, rule=rules)
