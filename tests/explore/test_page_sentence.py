"""The explorer's page Sentence in a real browser."""

from __future__ import annotations

import math

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

from bighmm.inspect import posterior_table, tag_table
from bighmm.lm.gaps import best_fillings, gap_words

pytestmark = IN_A_BROWSER


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
    open_sentence(page, site)
    page.focus(".strip [data-index='1']")
    page.press("ArrowRight", shift=True)
    page.hover(".strip [data-index='4']")  # which selects nothing
    page.count(".strip .chosen", 2)
    page.press("Escape")
    page.drag(".strip [data-index='0']", ".facts")  # released outside of the strip
    page.shows(".strip .gap .stood", "w03")
    page.hover(".strip [data-index='3']")
    page.count(".strip .chosen", 0)


def test_gaps_of_other_lengths(page, site):
    page.go(f"{site.url}#/sentence?text={ADDRESS}&gaps=1:2")
    page.shows(".stood-prob", "has another length")
    page.count(".stood-prob b", 0)
    page.go(f"{site.url}#/sentence?text={ADDRESS}&gaps=1:1-2,3")
    page.find(".best-fillings")
    gapped = "w03 ___1-2 w29 ___ w30"
    found = gap_words(site.lm, gapped, 10)
    lengths = ", ".join(map(str, found.lengths[0].lengths))
    assert f"if the lengths are {lengths}" in page.text(".gaps caption")
    assert page.text(".stack .card caption") == "Lengths of the gaps"
    best = best_fillings(site.lm, gapped, 1).fillings[0]
    stood = best.prob * math.exp(log_prob(site.lm, TEXT) - best.log_prob)
    assert page.data(".stood-prob b") == close([stood])
    page.go(f"{site.url}#/sentence?text={ADDRESS}&gaps=1:0")
    page.count(".strip .bits", 6)
    page.count(".strip .gap", 0)
    page.type("#sentence", "w03 zebra")
    page.count(".strip .bits", 3)
    assert page.texts(".strip .piece") == ["<unk>"]
    assert page.texts(".heat-table tbody th") == ["w03", "zebra (unknown)"]
    page.type("#sentence", "")
    page.wait("location.hash.endsWith('text=')")


def test_names_of_states_and_taps(page, site):
    state = posterior_table(site.lm, TEXT)[1][0]["states"][0]["state"]
    best = tag_table(site.lm, TEXT)[-1][0]["state"]
    page.go(f"{site.url}#/states")
    for number in {state, best}:
        page.js(f"""fetch('api/v1/names/{number}', {{
          method: 'PUT',
          headers: {{'Content-Type': 'application/json'}},
          body: '{{"name": "first words"}}',
        }})""")
    open_sentence(page, site)
    assert page.texts(".strip .state .name")[0] == "first words"
    page.tap(".heat-table .cell")
    page.shows(".posterior .readout", "first words")
    assert page.js("location.hash").startswith("#/sentence")
    page.tap(".heat-table .cell")
    page.shows("h1", f"State {state} · first words")
    page.click("nav a:first-child")  # the page as it was left
    page.count(".strip .bits", 6)


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


def test_errors_and_late_answers(page, site):
    open_sentence(page, site)
    page.type("#sentence", "w03 " * 5000)
    page.shows(".message.error", "The text has 20,000 characters")
    page.count(".strip .bits, .facts, .heat-table", 0)  # of the sentence before
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
