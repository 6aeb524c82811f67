// The page Write: texts that satisfy a rule, and how its probability changes word by word.

import { format, settle } from "./address.js";
import { ask, Asker, capital } from "./asking.js";
import { debounced, h, put } from "./dom.js";
import { number, prob, whole } from "./numbers.js";
import { absent, field, heading } from "./parts.js";
import { RuleForm } from "./rule_form.js";

const TYPING = 250;
const COUNTS = { n: [3, 1, 20], length: [30, 1, 200], seed: [1, 0, 2 ** 31 - 1] }; // usual, least, most

export function writePage(main, address, about) {
  if (!about.has_states) {
    put(
      main,
      heading("Write"),
      absent("Rules need a hidden Markov model; this one has no hidden states."),
    );
    return {};
  }
  const [asker, writer] = [new Asker("Computing p(rule)"), new Asker("Writing")];
  let written = false; // whether texts are part of the address
  const later = debounced(() => weigh(), TYPING);
  const form = new RuleForm(() => {
    leave();
    later();
  });
  const prefix = h("input", {
    id: "prefix",
    autocomplete: "off",
    spellcheck: false,
    autocapitalize: "off",
    on: {
      input: () => {
        leave();
        later();
      },
    },
  });
  const boxes = Object.fromEntries(
    Object.entries(COUNTS).map(([name, [usual, min, max]]) => [
      name,
      h("input", {
        type: "number",
        id: `write-${name}`,
        min,
        max,
        value: usual,
        on: {
          input: () => {
            leave();
            later();
          },
        },
      }),
    ]),
  );
  const heat = h("input", {
    type: "number",
    id: "write-temperature",
    min: 0,
    max: 10,
    step: 0.1,
    value: 1,
  });
  const top = h("div", { class: "rule-prob", role: "status" });
  const texts = h("div", { class: "stack", role: "status" });
  put(
    main,
    heading(
      "Write",
      "Texts are exact samples of the model given the rule, not tries until one fits.",
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
        field("Begins with", prefix, "The rule is about what comes after it."),
        form.element,
        h(
          "div",
          { class: "row even" },
          field("Texts", boxes.n),
          field("Longest text", boxes.length),
          field("Temperature", heat),
          field("Seed", boxes.seed),
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
    form.read(query);
    for (const name of Object.keys(COUNTS)) boxes[name].value = query.get(name) ?? COUNTS[name][0];
    heat.value = query.get("temperature") ?? 1;
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
        length: count("length") === COUNTS.length[0] ? "" : count("length"),
        ...(written
          ? {
              n: count("n"),
              seed: count("seed"),
              temperature: heat.value === "1" ? "" : heat.value,
            }
          : {}),
      }),
    );
  }

  function count(name) {
    const [usual, least, most] = COUNTS[name];
    return boxes[name].value === ""
      ? usual
      : Math.max(least, Math.min(most, Math.round(Number(boxes[name].value)) || 0));
  }

  function weigh() {
    here();
    const rule = form.value();
    if (rule === null) {
      asker.cancel();
      put(
        top,
        h(
          "p",
          { class: "soft" },
          "Without a rule every text is allowed. Add one to see its probability.",
        ),
      );
      return;
    }
    const body = { prefix: prefix.value, length: count("length"), rule };
    asker.ask(
      (signal, progress) => ask("rule", { body, signal, progress }),
      (answer) => {
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
                  `One text in ${number(Number((1 / answer.prob).toPrecision(2)))} that the model writes after this beginning satisfies it. Any text ends within ${whole(answer.length)} words with probability ${prob(answer.prob_ends)}.`,
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
    );
  }

  function submit(event) {
    event.preventDefault();
    form.settle();
    write();
  }

  function others() {
    boxes.seed.value = count("seed") + 1;
    form.settle();
    write();
  }

  function write() {
    later.cancel();
    written = true;
    weigh();
    const body = {
      prefix: prefix.value,
      n: count("n"),
      length: count("length"),
      temperature: Number(heat.value),
      seed: count("seed"),
    };
    const rule = form.value();
    if (rule) body.rule = rule;
    writer.ask(
      (signal, progress) => ask("write", { body, signal, progress }),
      (answer) =>
        put(
          texts,
          answer.texts.map((text, i) => sample(text, i, answer)),
          rule &&
            h(
              "p",
              { class: "hint" },
              "Under each word: the state of the rule's automaton, and p(rule | words so far) as a bar on a logarithmic scale, up to 1. ▲ it rose, ▼ it fell.",
            ),
        ),
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
  const words = text.words.map((word) => {
    const part = word.prob_rule > 0 ? Math.max(0.02, 1 - Math.log(word.prob_rule) / least) : 0;
    const change = word.prob_rule > last ? "up" : word.prob_rule < last ? "down" : "same";
    last = word.prob_rule;
    return h(
      "li",
      { class: "word" },
      h("span", { class: "face" }, word.word),
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
