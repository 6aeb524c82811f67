"""The explorer's pages in a real browser: what a person does there, and that its numbers are right.

They need the system's Chromium (Debian: `apt-get install chromium`) and are skipped without one.
"""

from __future__ import annotations

import itertools
import json
import math
import urllib.parse

import pytest
import torch
from browser import find_browser, opened_browser
from explored import HOSTILE, exported, served_models

from bighmm.base.locks import locked_folder
from bighmm.inspect import likely_words, posterior_table, state_table, tag_table
from bighmm.lm.gaps import best_fillings, gap_words
from bighmm.lm.questions import score

TEXT = "w03 w21 w29 w04 w30"
ADDRESS = TEXT.replace(" ", "+")
PAGES = (
    *("sentence", "states", "states/3", "blocks", "blocks/1", "blocks/1/to/2"),
    *("write?must=w21&seed=1", "training", "compare"),
)
NAMED = (  # roles that must have a name
    *("button", "link", "textbox", "searchbox", "spinbutton", "combobox", "checkbox"),
    *("image", "table", "region", "progressbar"),
)
LIGHT, DARK = "rgb(250, 249, 246)", "rgb(20, 23, 27)"
BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"
IDLE = "document.querySelector('h1') && !document.querySelector('.working:not([hidden])')"

pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="there is no Chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server with two tiny models."""
    with served_models(tmp_path_factory.mktemp("explored")) as site:
        yield site


@pytest.fixture(scope="module")
def one_page():
    with opened_browser(find_browser()) as browser:
        yield browser.page()


@pytest.fixture
def page(one_page):
    """The page, as large as on a desk, whose console must stay empty."""
    one_page.errors.clear()
    one_page.size(1200, 900)
    one_page.dark(False)
    yield one_page
    assert one_page.errors == []


def test_sentence_as_it_is_typed(page, site):
    page.go(f"{site.url}#/sentence")
    page.type("#sentence", TEXT)
    page.shows(".strip", "w21")
    page.count(".strip .bits", 6)
    assert page.data(".strip .bits") == close(surprisals(site.lm, TEXT))
    assert page.data(".facts dd")[0] == close(log_prob(site.lm, TEXT))
    *_, tags = tag_table(site.lm, TEXT)
    assert page.data(".strip a.state", "state") == [row["state"] for row in tags]
    _, rows = posterior_table(site.lm, TEXT, top=5)
    states = [state for row in rows for state in row["states"]]
    assert page.data(".heat-table .cell") == close([state["prob"] for state in states])
    page.hover(".heat-table .cell")
    page.shows(".posterior .readout", f"state {states[0]['state']} ")
    assert f"text={ADDRESS}" in page.js("location.hash")


def test_blanking_words(page, site):
    open_sentence(page, site)
    page.click(".strip [data-index='2']")
    page.count(".best-fillings tbody tr", 5)
    gapped = "w03 w21 ___ w04 w30"
    found = gap_words(site.lm, gapped, 10).gaps[0].words
    assert page.data(".gaps td[data-value]") == close([one.prob for one in found])
    best = best_fillings(site.lm, gapped, 1).fillings[0]
    stood = best.prob * math.exp(log_prob(site.lm, TEXT) - best.log_prob)
    assert page.data(".stood-prob b") == close([stood])
    page.click(".strip [data-index='4']")
    page.count(".strip .gap", 2)
    page.count(".gaps table", 2)
    fillings = best_fillings(site.lm, "w03 w21 ___ w04 ___", 5).fillings
    assert page.data(".best-fillings td:first-child") == close([one.prob for one in fillings])
    assert "gaps=2%2C4" in page.js("location.hash")
    page.click(".strip [data-index='2']")  # which puts the word back
    page.count(".strip .gap", 1)


def test_a_gap_of_several_words(page, site):
    open_sentence(page, site)
    page.drag(".strip [data-index='1']", ".strip [data-index='3']")
    page.shows(".strip .gap .face", "___3")
    page.count(".gaps table", 3)
    places = gap_words(site.lm, "w03 ___3 w30", 10).gaps
    probs = [word.prob for place in places for word in place.words]
    assert page.data(".gaps td[data-value]") == close(probs)
    page.press("Enter")  # on the gap, which has the focus
    page.count(".strip .gap", 0)
    page.focus(".strip [data-index='1']")
    page.press("ArrowRight", shift=True)
    page.press("Enter")
    page.shows(".strip .gap .face", "___2")
    assert "gaps=1-2" in page.js("location.hash")


def test_a_pinned_sentence_beside_its_copy(page, site):
    open_sentence(page, site)
    page.click("#pin")
    page.count(".pinned .bits", 6)
    page.type("#sentence", "w03 w21")
    page.count(".side:not(.pinned) .bits", 3)
    more = (log_prob(site.lm, TEXT) - log_prob(site.lm, "w03 w21")) / math.log(2)
    page.shows(".versus", f"{more:+.2f}".replace("-", "−"))
    page.go(page.js("location.href"))  # the address has both
    page.count(".pinned .bits", 6)
    page.count(".side:not(.pinned) .bits", 3)


def test_states(page, site):
    page.go(f"{site.url}#/states?sort=number")
    page.count(".states tbody tr", 24)
    page.type("#search", "w21")
    found = likely_words(site.lm.hmm(), list(range(24)), 20)
    word = site.lm.encode("w21")[0]
    having = [state for state in range(24) if word in found.ids[state, found.probs[state] > 0]]
    page.count(".states tbody tr", len(having))
    assert [int(row) for row in page.texts(".states tbody th a")] == having
    page.type("#search", "")
    page.click("[data-sort='entropy']")
    page.find("[aria-sort=ascending] [data-sort=entropy]")
    page.count(".states tbody tr", 24)
    entropies = page.data(".states tbody td:nth-child(4)")
    assert entropies == sorted(entropies)
    page.click(".states tbody a")
    page.find(".columns")
    assert page.js("document.activeElement.tagName") == "H1"
    state = int(page.text("h1").removeprefix("State "))
    row = state_table(site.lm, [state], words=40, neighbours=12)[0]
    for place, part in ((1, "words"), (2, "next")):
        probs = page.data(f".columns section:nth-child({place}) td")
        assert probs == close([one["prob"] for one in row[part]])
    page.type("#name", HOSTILE)
    page.press("Enter")
    page.shows("form .asker", "Saved")
    page.go(f"{site.url}#/states/{state}")
    page.shows("#name", HOSTILE)
    page.go(f"{site.url}#/states?query={state}&sort=number")
    page.shows(".states .name", HOSTILE)


def test_blocks(page, site):
    page.go(f"{site.url}#/blocks")
    page.count(".blocks tbody tr", 4)
    page.focus("canvas.map")
    page.press(*["ArrowUp"] * 3, *["ArrowLeft"] * 3, "ArrowRight", "+", "0")
    page.shows(".map-frame .readout", "0 (")
    assert "→ 1 (" in page.text(".map-frame .readout")
    page.press("Enter")
    page.find(".pair")
    assert page.text("h1") == "From block 0 to block 1"
    columns = page.data(".pair thead a", "state")
    rows = page.data(".pair tbody a", "state")
    table = site.lm.hmm().transitions.log_probs(torch.tensor(rows)).exp()[:, columns]
    assert page.data(".pair .cell") == close(table.flatten().tolist())


def test_writing_under_a_rule(page, site):
    page.go(f"{site.url}#/write")
    page.type("#prefix", "w03")
    page.type("#rule-must", "w21")
    page.press("Enter")
    page.type("#rule-most", "4")
    page.wait("location.hash.includes('words=..4') && location.hash.includes('must=w21')")
    rule = site.lm.rule(must=["w21"], words=(0, 4))
    prob = math.exp(float(site.lm.rule_log_prob(rule, prefix="w03", length=30)))
    shown = "document.querySelector('#rule-prob')?.dataset.value"
    page.wait(f"Math.abs({shown} - {prob}) < {1e-4 * prob}")
    page.click("#write")
    page.count(".sample", 3)
    texts = page.texts(".sample .text")
    for number, text in enumerate(texts, 1):
        assert text.startswith("w03") and "w21" in text
        assert page.data(f".sample:nth-child({number}) .strip .bits")[-1] == close(1)
    page.go(page.js("location.href"))  # the seed is in the address
    page.count(".sample", 3)
    assert page.texts(".sample .text") == texts


def test_an_impossible_rule_says_why(page, site):
    page.go(f"{site.url}#/write?must=w21")
    page.find("#rule-prob")
    page.type("#rule-not", "w21")
    page.press("Enter")
    page.shows("#why-not", "The rule cannot hold. ")
    why = page.text("#why-not")
    assert "w21" in why
    page.click("#write")
    page.find(".split .message.error")
    expect_refusals(page)
    page.click(".chips button[aria-label='Remove w21']")
    page.wait("document.querySelector('#why-not') === null")


def test_training_moves_while_a_run_goes_on(page, site):
    log = site.run / "log.jsonl"
    before = log.read_text()
    records = [json.loads(line) for line in before.splitlines()]
    last = [one for one in records if "loss" in one][-1]
    perplexity = min(one["perplexity"] for one in records if "perplexity" in one)
    status = "main [role=status] li"
    try:
        with locked_folder(site.run):
            page.go(f"{site.url}#/training")
            page.shows(status, f"step {last['step']}")
            assert f"{perplexity:.4g}" in page.text(status)
            assert len(page.js("[...document.querySelectorAll('.chart .line')].map(e => 1)")) >= 4
            more = last | {"step": last["step"] + 1, "loss": 1.25, "seconds": last["seconds"] + 1}
            with log.open("a") as file:
                file.write(json.dumps(more) + "\n")
            page.shows(status, f"step {last['step'] + 1}")
            page.shows(".chart-card .readout b", "1.25")
    finally:
        log.write_text(before)


def test_two_models_on_one_sentence(page, site):
    page.go(f"{site.url}#/compare?text={ADDRESS}")
    page.count(".compare .bits", 6)
    both = zip(surprisals(site.lm, TEXT), surprisals(site.other, TEXT), strict=True)
    assert page.data(".compare .bits") == close([b - a for a, b in both])
    page.type("#compare-text", "w03 w21\nw21 w29 w04")
    page.count("main article", 2)


def test_another_model_by_its_address(page, site):
    page.go(f"{site.url}#/sentence?text=w03&model=b")
    page.count(".strip .bits", 2)
    assert page.data(".strip .bits") == close(surprisals(site.other, "w03"))
    page.click("nav a[href*='states']")
    page.find(".states")
    assert "model=b" in page.js("location.hash")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_on_a_phone(page, site, name):
    page.size(320, 640)
    page.dark(True)
    page.go(f"{site.url}#/{name}")
    page.wait(IDLE)
    assert page.js(BACKGROUND) == DARK
    assert page.js("document.documentElement.scrollWidth") <= 320
    outside = """[...document.querySelectorAll('main *')].filter(e => {
      const box = e.getBoundingClientRect();
      return box.right > 321 && box.width > 1 && !e.closest('.scroll, .unseen');
    }).map(e => e.outerHTML.slice(0, 80))"""
    assert page.js(outside) == []
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    roles = [(node["role"]["value"], node) for node in nodes if not node.get("ignored")]
    assert {"banner", "navigation", "main", "contentinfo"} <= {role for role, _ in roles}
    named = [(role, node.get("name", {}).get("value")) for role, node in roles if role in NAMED]
    assert named and [role for role, name in named if not name] == []


def test_with_the_keyboard_alone(page, site):
    open_sentence(page, site)
    page.press("Tab")
    assert page.js("document.activeElement.id") == "skip"
    page.press("Tab", "Tab", "Tab")
    assert page.js("document.activeElement.innerText") == "States"
    page.press("Enter")
    page.shows("h1:focus", "States")
    assert page.js("document.title").startswith("States")
    open_sentence(page, site)
    page.focus(".heat-table .cell")
    page.press("ArrowDown", "ArrowRight")
    state = posterior_table(site.lm, TEXT)[1][1]["states"][1]["state"]
    assert page.js("document.activeElement.dataset.state") == str(state)
    page.press("Enter")
    page.shows("h1:focus", f"State {state}")


def test_words_of_the_vocabulary_are_text_only(page, site):
    page.go(f"{site.url}#/states?query=onerror&sort=number")
    page.shows(".states tbody", HOSTILE)
    page.go(f"{site.url}#/sentence?{urllib.parse.urlencode({'text': HOSTILE})}")
    page.shows(".strip", "<img")
    assert page.js("document.querySelectorAll('main img, main script').length") == 0


def test_errors_and_late_answers(page, site):
    open_sentence(page, site)
    page.type("#sentence", "w03 " * 5000)
    page.shows(".message.error", "characters")
    expect_refusals(page)
    # The answers about w29 are held back until those about w21 are shown; they must not replace it.
    page.js("""(() => {
      const real = window.fetch;
      window.held = [];
      const plain = (options) => ({ ...options, signal: null });
      window.fetch = (address, options) => options?.body?.includes('w29')
        ? new Promise((go) => window.held.push(() => go(real(address, plain(options)))))
        : real(address, options);
    })()""")
    page.type("#sentence", "w29 w29")
    page.wait("window.held.length > 0")
    page.click(".working:not([hidden]) button")  # Cancel
    page.wait(IDLE)
    page.type("#sentence", "w29")
    page.find(".working:not([hidden])")
    page.type("#sentence", "w21")
    page.count(".strip .bits", 2)
    page.js("Promise.all(window.held.map((go) => go()))")
    page.js("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
    assert page.texts(".strip button.face") == ["w21"]


def test_light_and_dark(page, site):
    open_sentence(page, site)
    assert page.js(BACKGROUND) == LIGHT
    page.click("#theme")
    assert page.js(BACKGROUND) == DARK
    page.go(page.js("location.href"))
    page.find("#theme")
    assert page.js(BACKGROUND) == DARK  # it is kept
    page.js("localStorage.clear()")


def test_an_exported_site_opens_from_a_file(page, site, tmp_path):
    folder = exported(site, tmp_path / "export", [TEXT])
    page.go((folder / "index.html").as_uri())
    page.count(".strip .bits", 6)
    assert page.data(".strip .bits") == close(surprisals(site.lm, TEXT))
    page.click(".strip [data-index='2']")
    page.find(".best-fillings")
    words = gap_words(site.lm, "w03 w21 ___ w04 w30", 10).gaps[0].words
    assert page.data(".gaps td[data-value]") == close([one.prob for one in words])
    page.click("nav a[href='#/states']")
    page.count(".states tbody tr", 24)
    page.click(".states tbody a")
    page.find(".columns")
    page.click("nav a[href='#/blocks']")
    page.find("canvas.map")
    page.click("nav a[href='#/training']")
    page.find(".chart .line")
    assert page.texts("nav[aria-label=Pages] a") == ["Sentence", "States", "Blocks", "Training"]


def open_sentence(page, site) -> None:
    page.go(f"{site.url}#/sentence?text={ADDRESS}")
    page.count(".strip .bits", 6)


def expect_refusals(page) -> None:
    """Forget that the console lists answers with a status of 4xx, which the page has shown."""
    page.errors[:] = [one for one in page.errors if "status of 4" not in one]


def close(values):
    return pytest.approx(values, rel=1e-3, abs=1e-6)


def log_prob(lm, text: str) -> float:
    """log p(text with its end mark)."""
    return score(lm, [text])[0].log_prob


def surprisals(lm, text: str) -> list[float]:
    """-log2 p(word | words before it), with the end mark, from log-probabilities of beginnings."""
    ids = lm.encode(text + "\n")
    logs = [0.0, *(float(lm.hmm().log_prob([ids[: n + 1]])[0]) for n in range(len(ids)))]
    return [(before - after) / math.log(2) for before, after in itertools.pairwise(logs)]
