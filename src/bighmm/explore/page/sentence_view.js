// One sentence with its answers: words and surprisals, best path, posterior, gaps.

import { ask, Asker } from "./asking.js";
import { h, put } from "./dom.js";
import { fillingParts } from "./filling.js";
import { bits, number, surprisal } from "./numbers.js";
import { absent, facts, field } from "./parts.js";
import { posteriorTable } from "./posterior.js";
import { isExport } from "./stored.js";
import { WordStrip } from "./strip.js";
import { aligned, gapped, hasGap, readGaps, split, withGap, writeGaps } from "./units.js";

const TOP = 5; // states of a word
const WORDS = 6; // of a state
const PLACES = 10; // likeliest words of a gap

export class SentenceView {
  /** changed() is called whenever the sentence, its gaps or its answers are others. */
  constructor({ label, about, editable, changed }) {
    Object.assign(this, { about, changed });
    this.text = "";
    this.gaps = [];
    this.answer = null;
    this.asker = new Asker("Reading the sentence");
    this.filler = new Asker("Filling the gaps");
    this.strip = new WordStrip({
      label: `${label}, word by word`,
      editable,
      blank: (from, to) => this.#setGaps(withGap(this.gaps, this.units, from, to)),
      restore: (gap) => this.#setGaps(this.gaps.filter((one) => one !== gap)),
      resize: (gap, least, most) =>
        this.#setGaps(this.gaps.map((one) => (one === gap ? { ...one, least, most } : one))),
    });
    this.count = h("input", {
      type: "number",
      min: 1,
      max: 50,
      value: 5,
      on: { change: () => this.#fill() },
    });
    this.numbers = h("div", { class: "stack" });
    this.filled = h("div", { class: "stack", role: "status" });
    this.states = h("div");
    this.element = h(
      "div",
      { class: "stack" },
      this.numbers,
      this.asker.element,
      this.strip.element,
      this.filler.element,
      this.filled,
      this.states,
    );
    if (!isExport())
      this.howMany = h("div", { class: "narrow" }, field("How many fillings", this.count));
  }

  /** {text, gaps}, as they stand in an address. */
  value() {
    return { text: this.text, gaps: writeGaps(this.gaps) };
  }

  /** −log2 p of the whole sentence; null while it is not known. */
  bits() {
    return this.answer ? surprisal(this.answer.score.log_prob) : null;
  }

  show({ text, gaps }) {
    if (text === this.text && this.answer) {
      this.gaps = this.answer.blankable ? readGaps(gaps, this.units.length) : [];
      this.#draw();
      this.#fill();
      return;
    }
    this.units = split(text);
    this.gaps = readGaps(gaps, this.units.length);
    this.text = text;
    this.answer = null;
    if (this.units.length === 0) {
      this.clear();
      return;
    }
    if (hasGap(text)) {
      this.asker.cancel();
      put(
        this.numbers,
        h(
          "p",
          { class: "message" },
          "Gaps that are typed are filled; without them there are also surprisals and states, and a click blanks a word.",
        ),
      );
      put(this.states);
      this.#draw();
      this.#fill();
    } else {
      this.asker.ask(
        (signal, progress) => this.#questions(signal, progress),
        (answer) => {
          const units = aligned(this.text, answer.tokens);
          const blankable = units !== null && this.about.has_states;
          this.answer = { ...answer, blankable };
          this.units =
            units ?? answer.tokens.map((token) => ({ text: token.word, tokens: [token] }));
          this.gaps = blankable ? readGaps(gaps, units.length) : [];
          this.#draw();
          this.#fill();
          this.changed();
        },
        () => {
          this.filler.cancel();
          this.#empty();
          this.changed();
        },
      );
    }
  }

  clear() {
    this.text = "";
    this.answer = null;
    this.close();
    this.#empty();
  }

  close() {
    this.asker.cancel();
    this.filler.cancel();
  }

  #empty() {
    for (const part of [this.numbers, this.states, this.filled, this.strip.element]) put(part);
  }

  async #questions(signal, progress) {
    const { text } = this;
    const post = (name, body) => ask(name, { body, signal, progress });
    const scores = post("score", { texts: [text], words: true });
    if (!this.about.has_states) return combined((await scores).lines[0], [], null, {});
    const [score, tag, posterior, { names }] = await Promise.all([
      scores,
      post("tag", { text, words: WORDS }),
      post("posterior", { text, top: TOP, words: WORDS }),
      ask("names", { signal }),
    ]);
    return combined(score.lines[0], tag.tokens, posterior.tokens, names);
  }

  #draw() {
    this.strip.show(this.units, this.gaps, this.answer?.end, this.answer?.blankable ?? false);
    if (!this.answer) return;
    const { score, tags, posterior } = this.answer;
    const total = surprisal(score.log_prob);
    put(
      this.numbers,
      facts([
        ["log p", number(score.log_prob ?? -Infinity), score.log_prob],
        ["bits in all", bits(total), total],
        ["bits a word", bits(total / score.tokens), total / score.tokens],
        ["perplexity", number(score.perplexity ?? Infinity), score.perplexity],
      ]),
      score.unknown.length > 0 &&
        h(
          "p",
          { class: "message" },
          "Not in the vocabulary: ",
          score.unknown.map((word, i) => [i > 0 && ", ", h("bdi", {}, word)]),
          ".",
        ),
    );
    put(
      this.states,
      posterior
        ? h(
            "section",
            { class: "card", "aria-label": "States" },
            h("h2", {}, "States of each word"),
            posteriorTable(named(posterior, this.units), tags),
          )
        : absent("This model has no hidden states, so there is no best path and no posterior."),
    );
  }

  #setGaps(gaps) {
    if (!this.answer) return; // the words that were clicked are being replaced
    this.gaps = gaps;
    this.#draw();
    this.#fill();
    this.changed();
  }

  #fill() {
    const inText = hasGap(this.text);
    if (this.gaps.length === 0 && !inText) {
      this.filler.cancel();
      put(this.filled);
      return;
    }
    const text = inText ? this.text : gapped(this.units, this.gaps);
    const stood = inText
      ? null
      : this.gaps.map(({ from, to, least, most }) => {
          const tokens = this.units.slice(from, to + 1).flatMap((unit) => unit.tokens);
          return {
            words: tokens.map((token) => token.word),
            faces: tokens.map((token) => token.face ?? token.word),
            fits: least <= tokens.length && tokens.length <= most,
          };
        });
    const n = Math.max(1, Math.min(50, Math.round(Number(this.count.value)) || 5));
    const scored = this.answer?.score.log_prob ?? null;
    this.filler.ask(
      (signal, progress) =>
        Promise.all([
          ask("fill", { body: { text, kind: "probs", n: PLACES }, signal, progress }),
          ask("fill", { body: { text, kind: "best", n }, signal, progress }),
        ]),
      ([probs, best]) =>
        put(
          this.filled,
          h("h2", {}, "In the gaps"),
          fillingParts(probs, best, stood, scored),
          this.howMany,
        ),
      () => put(this.filled),
    );
  }
}

/**
 * Tokens with surprisal and state of the best path; the end mark is the last token of a score.
 * names: those that people gave to states.
 */
function combined(score, tags, posterior, names) {
  const tokens = score.words.map((word, i) => ({
    word: word.word,
    unknown: word.is_unknown,
    bits: word.surprisal_bits ?? Infinity,
    state: tags[i]?.state,
    stateName: names[tags[i]?.state],
    stateWords: tags[i]?.words,
  }));
  const rows = posterior?.map((token) => ({
    ...token,
    states: token.states.map((state) => ({ ...state, name: names[state.state] })),
  }));
  return { score, tags, posterior: rows ?? null, end: tokens.pop(), tokens };
}

/** The rows of a posterior with unknown words as they were typed. */
function named(posterior, units) {
  const tokens = units.flatMap((unit) => unit.tokens);
  return posterior.map((row, i) => ({ ...row, word: tokens[i]?.face ?? row.word }));
}
