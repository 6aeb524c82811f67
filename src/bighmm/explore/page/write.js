// The page Write: texts that satisfy a rule, and how its probability changes word by word.

import { format, settle } from "./address.js";
import { ask, Asker, capital } from "./asking.js";
import { debounced, h, put } from "./dom.js";
import { bits, number, prob, surprisal, whole } from "./numbers.js";
import { absent, field, heading } from "./parts.js";
import { RuleForm } from "./rule_form.js";

const TYPING = 250;
const NUMBERS = {
  n: { label: "Texts", usual: 3, min: 1, max: 20, step: 1 },
  length: { label: "Longest text", usual: 30, min: 1, max: 200, step: 1 },
  temperature: { label: "Temperature", usual: 1, min: 0, max: 10, step: 0.1 },
  seed: { label: "Seed", usual: 1, min: 0, max: 2 ** 31 - 1, step: 1 },
};
const LEAST_SCALE = 12; // bits that fill a bar at least, as on the page Sentence

export function writePage(main, address, about) {
  const [asker, writer] = [new Asker("Computing p(rule)"), new Asker("Writing")];
  let written = false; // whether texts are part of the address
  let refused = false; // whether the top says why there can be no texts
  const later = debounced(() => weigh(), TYPING);
  const input = () => {
    leave();
    later();
  };
  const form = new RuleForm(input);
  const prefix = h("input", {
    id: "prefix",
    autocomplete: "off",
    spellcheck: false,
    autocapitalize: "off",
    on: { input },
  });
  const boxes = Object.fromEntries(
    Object.entries(NUMBERS).map(([name, { usual, min, max, step }]) => [
      name,
      h("input", {
        type: "number",
        id: `write-${name}`,
        min,
        max,
        step,
        value: usual,
        on: { input },
      }),
    ]),
  );
  const top = h("div", { class: "rule-prob", role: "status" });
  const texts = h("div", { class: "stack", role: "status" });
  put(
    main,
    heading(
      "Write",
      about.has_states
        ? "Texts are exact samples of the model given the rule, not tries until one fits. A temperature other than 1 makes the words sharper or flatter."
        : "Texts are samples of the model. A temperature other than 1 makes the words sharper or flatter.",
    ),
    h(
      "section",
      { class: "stack banner", "aria-label": "Probability of the rule" },
      asker.element,
      top,
    ),
    h(
      "div",
      { class: "split" },
      h(
        "form",
        { class: "card stack controls", on: { submit } },
        field(
          "Begins with",
          prefix,
          about.has_states ? "The rule is about what comes after it." : null,
        ),
        about.has_states
          ? form.element
          : absent("Rules need a hidden Markov model; this one has no hidden states."),
        h(
          "div",
          { class: "row even" },
          Object.entries(NUMBERS).map(([name, { label }]) => field(label, boxes[name])),
        ),
        h(
          "div",
          { class: "row" },
          h("button", { type: "submit", id: "write" }, "Write"),
          h("button", { type: "button", class: "quiet", on: { click: others } }, "Other texts"),
        ),
      ),
      h("section", { class: "stack", "aria-label": "Texts" }, writer.element, texts),
    ),
  );
  update(address);
  return { update, close };

  function update({ query }) {
    prefix.value = query.get("prefix") ?? "";
    if (about.has_states) form.read(query);
    for (const [name, { usual }] of Object.entries(NUMBERS))
      boxes[name].value = query.get(name) ?? usual;
    put(texts);
    put(top);
    weigh();
    if (query.has("seed")) write();
  }

  function leave() {
    written = false;
    writer.cancel();
    put(texts);
  }

  function here() {
    settle(
      format("write", [], {
        prefix: prefix.value,
        ...form.address(),
        length: unusual("length"),
        temperature: unusual("temperature"),
        ...(written ? { n: value("n"), seed: value("seed") } : {}),
      }),
    );
  }

  function value(name) {
    const { usual, min, max, step } = NUMBERS[name];
    const given = Number(boxes[name].value) || 0;
    return boxes[name].value === ""
      ? usual
      : Math.max(min, Math.min(max, step === 1 ? Math.round(given) : given));
  }

  function unusual(name) {
    return value(name) === NUMBERS[name].usual ? "" : value(name);
  }

  function weigh() {
    here();
    refused = false;
    const rule = form.value();
    if (rule === null) {
      asker.cancel();
      put(
        top,
        about.has_states &&
          h(
            "p",
            { class: "soft" },
            "Without a rule every text is allowed. Add one to see its probability.",
          ),
      );
      return;
    }
    const body = { prefix: prefix.value, length: value("length"), rule };
    asker.ask(
      (signal, progress) => ask("rule", { body, signal, progress }),
      (answer) => {
        if (!answer.possible) refuse();
        put(
          top,
          answer.possible
            ? [
                h(
                  "p",
                  { class: "big" },
                  "p(rule) = ",
                  h("b", { id: "rule-prob", data: { value: answer.prob } }, prob(answer.prob)),
                ),
                h(
                  "p",
                  { class: "soft" },
                  `One text in ${number(Number((1 / answer.prob).toPrecision(2)))} that the model writes after this beginning satisfies it. Any text ends within ${whole(answer.length)} ${answer.length === 1 ? "word" : "words"} with probability ${prob(answer.prob_ends)}.`,
                ),
              ]
            : h(
                "p",
                { class: "message error", id: "why-not" },
                h("b", {}, "The rule cannot hold. "),
                capital(answer.why_not ?? ""),
              ),
        );
      },
      () => {
        refuse();
        put(top);
      },
    );
  }

  /** The top says what is wrong, so the place of the texts need not. */
  function refuse() {
    refused = true;
    writer.cancel();
    put(texts);
  }

  function submit(event) {
    event.preventDefault();
    form.settle();
    write();
  }

  function others() {
    boxes.seed.value = value("seed") + 1;
    form.settle();
    write();
  }

  function write() {
    later.cancel();
    written = true;
    weigh();
    const body = {
      prefix: prefix.value,
      n: value("n"),
      length: value("length"),
      temperature: value("temperature"),
      seed: value("seed"),
    };
    const rule = form.value();
    if (rule) body.rule = rule;
    writer.ask(
      (signal, progress) => ask("write", { body, signal, progress }),
      (answer) =>
        put(
          texts,
          answer.texts.map((text, i) => sample(text, i, answer)),
          answer.unknown.length > 0 &&
            h(
              "p",
              { class: "message" },
              "Not in the vocabulary, and read as unknown: ",
              answer.unknown.map((word, i) => [i > 0 && ", ", h("bdi", {}, word)]),
              ".",
            ),
          h(
            "p",
            { class: "hint" },
            rule
              ? "Under each word: the state of the rule's automaton, and p(rule | words so far) as a bar on a logarithmic scale, up to 1. ▲ it rose, ▼ it fell."
              : "Under each word: its surprisal in bits.",
          ),
        ),
      () => (refused ? refuse() : put(texts)),
    );
  }

  function close() {
    later.cancel();
    asker.cancel();
    writer.cancel();
  }
}

function sample(text, index, { prob: before, automaton }) {
  const known = text.words.map((word) => word.prob_rule).filter((value) => value > 0);
  const least = Math.log(Math.min(before ?? 1, 1, ...known)) || -1;
  let last = before;
  const each = text.words.map((word) => surprisal(word.log_prob_next));
  const scale = Math.max(LEAST_SCALE, ...each.filter(Number.isFinite));
  const words = text.words.map((word, i) => {
    const part = word.prob_rule > 0 ? Math.max(0.02, 1 - Math.log(word.prob_rule) / least) : 0;
    const change = word.prob_rule > last ? "up" : word.prob_rule < last ? "down" : "same";
    last = word.prob_rule;
    return h(
      "li",
      { class: "word" },
      h("span", { class: "face" }, word.word),
      !automaton && [
        h(
          "span",
          { class: "bar-frame", "aria-hidden": "true" },
          h("span", { class: "bar", style: { height: `${(100 * Math.min(each[i], scale)) / scale}%` } }),
        ),
        h(
          "span",
          { class: "bits", data: { value: each[i] } },
          bits(each[i]),
          h("span", { class: "unseen" }, " bits"),
        ),
      ],
      automaton && [
        h(
          "span",
          { class: "bar-frame up", "aria-hidden": "true" },
          h("span", { class: `bar ${change}`, style: { height: `${100 * part}%` } }),
        ),
        h(
          "span",
          { class: "bits", data: { value: word.prob_rule } },
          h(
            "span",
            {
              class: `change ${change}`,
              "aria-label": { up: "rises to", down: "falls to", same: "stays at" }[change],
            },
            { up: "▲", down: "▼", same: "·" }[change],
          ),
          prob(word.prob_rule),
        ),
        h(
          "span",
          {
            class: "automaton",
            title: "State of the automaton",
            data: { automaton: word.automaton },
          },
          h("span", { class: "unseen" }, "automaton's state "),
          `q${word.automaton}`,
        ),
      ],
    );
  });
  return h(
    "article",
    { class: "card sample", "aria-label": `Text ${index + 1}` },
    h("p", { class: "text" }, text.text),
    h(
      "p",
      { class: "soft" },
      "log p ",
      h("b", { data: { value: text.log_prob } }, number(text.log_prob)),
      automaton && [
        ", given the rule ",
        h("b", { data: { value: text.log_prob_given_rule } }, number(text.log_prob_given_rule)),
      ],
    ),
    h("ol", { class: "strip", "aria-label": "Word by word" }, words),
  );
}
