"""The explorer's pages in a real browser: what a person does there, and that its numbers are right.

They need the system's Chromium (Debian: `apt-get install chromium`) and are skipped without one.
"""

from __future__ import annotations

import json
import math
import urllib.parse

import pytest
import torch
from explored import HOSTILE, LONG, exported
from pages import (
    ADDRESS,
    IDLE,
    IN_A_BROWSER,
    TEXT,
    close,
    expect_refusals,
    log_prob,
    open_sentence,
    surprisals,
)

from bighmm.base.locks import locked_folder
from bighmm.inspect import likely_words, posterior_table, state_table
from bighmm.lm.gaps import best_fillings, gap_words

PAGES = (
    *(
        "sentence",
        f"sentence?text={LONG}+zebra",
        "states",
        "states/20",  # which has long words in its contexts
        "blocks",
        "blocks/1",
        "blocks/1/to/2",
    ),
    *("write?must=w21&seed=1", "training", "compare"),
)
NAMED = (  # roles that must have a name
    *("button", "link", "textbox", "searchbox", "spinbutton", "combobox", "checkbox"),
    *("image", "table", "region", "progressbar"),
)
GIVE = """{
  const input = document.querySelector("#compare-file");
  const files = new DataTransfer();
  files.items.add(file);
  input.files = files.files;
  input.dispatchEvent(new Event("change"));
}"""
LIGHT, DARK = "rgb(250, 249, 246)", "rgb(20, 23, 27)"
BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"

pytestmark = IN_A_BROWSER


def test_states(page, site):
    page.go(f"{site.url}#/states?sort=number")
    page.count(".states tbody tr", 24)
    page.type("#search", "w21")
    having = states_with(site.lm, "w21")
    page.count(".states tbody tr", len(having))
    assert [int(row) for row in page.texts(".states tbody th a")] == having
    page.type("#search", "")
    page.go(f"{site.url}#/states?sort=number&page=9999")
    page.shows("main > p[role=status]", "1 to 24 of 24 states")
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
    assert page.text("h1") == f"State {state} · {HOSTILE}"
    page.go(f"{site.url}#/states/{state}")
    page.shows("#name", HOSTILE)
    page.shows("h1", HOSTILE)
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
    page.type("#write-temperature", "0")
    page.count(".sample", 0)  # they were of another temperature
    page.wait("location.hash.includes('temperature=0') && !location.hash.includes('seed')")
    page.click("#write")
    page.count(".sample", 3)
    assert len(set(page.texts(".sample .text"))) == 1
    page.type("#write-temperature", "")  # the usual one
    page.wait("!location.hash.includes('temperature')")
    page.click("#write")
    page.count(".sample", 3)
    assert page.texts(".sample .text") == texts


def test_an_impossible_rule_says_why(page, site):
    page.go(f"{site.url}#/write?must=w21")
    page.find("#rule-prob")
    page.type("#rule-not", "w21")
    page.press("Enter")
    page.shows("#why-not", "The rule cannot hold. ")
    why = page.text("#why-not")
    assert "the rules must 'w21' and must not 'w21' together" in why
    page.click("#write")
    page.wait("location.hash.includes('seed=1')")
    page.wait(IDLE)
    page.count(".message.error", 1)  # it is not said twice
    expect_refusals(page)
    page.type("#rule-least", "5")
    page.type("#rule-most", "2")
    page.shows(".asker .message.error", "not 5 to 2")
    expect_refusals(page)
    assert page.text(".rule-prob") == ""
    page.type("#rule-least", "")
    page.click(".chips button[aria-label='Remove w21']")
    page.find("#rule-prob")
    assert not page.texts("#why-not, .message.error")


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
    give = "new File([{}], 'text.txt')"
    page.js(f"window.give = (file) => {GIVE}")
    page.js(f"give({give.format(json.dumps('w03 ' * 5000))})")
    page.shows(".message.error", "20,000 characters")
    page.count("main article, .facts", 0)  # of the lines that were there before
    expect_refusals(page)
    lines = 20_000  # more characters than one question may have
    page.js(f"give({give.format(json.dumps('w03 w21 w29' + chr(10)) + f'.repeat({lines})')})")
    page.shows(".facts", "words and ends")
    totals = [-lines * log_prob(lm, "w03 w21 w29") / math.log(2) for lm in (site.lm, site.other)]
    assert page.data(".facts dd")[:2] == close(totals)
    assert page.data(".facts dd")[-1] == 4 * lines


def test_another_model_by_its_address(page, site):
    page.go(f"{site.url}#/sentence?text=w03&model=b")
    page.count(".strip .bits", 2)
    assert page.data(".strip .bits") == close(surprisals(site.other, "w03"))
    page.click("nav a[href*='states']")
    page.find(".states")
    assert "model=b" in page.js("location.hash")


def test_models_without_states_or_a_corpus(page, site):
    page.go(f"{site.url}#/write?model=c&must=cat&seed=1")
    page.count(".sample", 3)
    assert page.data(".sample .bits") and not page.texts("fieldset")
    page.go(f"{site.url}#/states/3?model=d")
    page.shows("main", "start again with --data")
    page.click("nav a[href*='states']")
    page.shows("main", "Without the corpus the shares are not known.")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_on_a_phone(page, site, name):
    page.size(320, 640)
    page.dark(True)
    page.go(f"{site.url}#/{name}")
    page.wait(IDLE)
    if name.startswith("states/"):
        page.shows(".contexts", LONG)
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
    text = "W03 xyzzy w21, w29 w04"
    folder = exported(site, tmp_path / "export", [text, TEXT])
    page.go((folder / "index.html").as_uri())
    page.shows(".strip", "xyzzy")
    assert page.data(".strip .bits") == close(surprisals(site.lm, text))
    for index, gapped in enumerate(
        ["___ xyzzy w21, w29 w04", "W03 ___ w21, w29 w04", "W03 xyzzy ___ w29 w04"]
    ):
        page.click(f".strip [data-index='{index}']")
        page.find(".best-fillings")
        words = [word.prob for place in gap_words(site.lm, gapped, 10).gaps for word in place.words]
        assert page.data(".gaps td[data-value]") == close(words)
        best = best_fillings(site.lm, gapped, 5).fillings
        assert page.data(".best-fillings td:last-child") == close([one.log_prob for one in best])
        stood = best[0].prob * math.exp(log_prob(site.lm, text) - best[0].log_prob)
        assert page.data(".stood-prob b") == close([stood])
        page.click(f".strip [data-index='{index}']")
        page.count(".strip .gap", 0)
    page.click("nav a[href='#/states']")
    page.count(".states tbody tr", 24)
    page.type("#search", "W21")
    page.shows("main > p[role=status]", f"of {len(states_with(site.lm, 'w21'))} states")
    page.click(".states tbody a")
    page.find(".columns")
    page.click("nav a[href='#/blocks']")
    page.find("canvas.map")
    page.focus("canvas.map")
    page.press("Enter")  # pairs of blocks are not exported
    page.click(".blocks tbody tr:nth-child(2) a")
    page.shows("h1", "Block 1")
    page.shows(".probs", "w30")
    page.click("nav a[href='#/training']")
    page.find(".chart .line")
    assert page.texts("nav[aria-label=Pages] a") == ["Sentence", "States", "Blocks", "Training"]


def states_with(lm, word: str) -> list[int]:
    """The states that have a word among their likeliest 20."""
    states = list(range(lm.hmm().num_states))
    found = likely_words(lm.hmm(), states, 20)
    return [i for i in states if lm.encode(word)[0] in found.ids[i, found.probs[i] > 0]]
