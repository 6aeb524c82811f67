// The page Compare: two models on one sentence or file, word by word.

import { format, settle } from "./address.js";
import { ask, Asker, Refusal } from "./asking.js";
import { debounced, h, put } from "./dom.js";
import { bits, number, signed, whole } from "./numbers.js";
import { absent, facts, field, heading } from "./parts.js";

const TYPING = 250;
const LINES = 40; // that are shown at a time
const MOST = 5e6; // characters of a file
const EXAMPLE = "the name of the file";

export function comparePage(main, address, { models, limits }) {
  if (models.length < 2) {
    put(
      main,
      heading("Compare"),
      absent(
        "There is one model only. Start with a second one to compare them: bighmm explore RUN --other RUN2",
      ),
    );
    return {};
  }
  const asker = new Asker("Comparing");
  const box = h("textarea", {
    id: "compare-text",
    rows: 2,
    spellcheck: false,
    autocapitalize: "off",
    on: {
      input: debounced(() => {
        file.value = "";
        run(box.value);
      }, TYPING),
    },
  });
  const file = h("input", {
    type: "file",
    id: "compare-file",
    accept: ".txt,text/plain",
    on: { change: readFile },
  });
  const choose = (id) =>
    h(
      "select",
      { id, on: { change: () => run(text) } },
      models.map((one) => h("option", { value: one.model }, one.name)),
    );
  const [first, second] = [choose("first"), choose("second")];
  const order = h(
    "select",
    { id: "order", on: { change: () => show(answer) } },
    h("option", { value: "text" }, "as in the text"),
    h("option", { value: "difference" }, "largest difference first"),
  );
  const result = h("div", { class: "stack", "aria-live": "polite" });
  let [text, answer] = ["", null];
  put(
    main,
    heading(
      "Compare",
      "The difference in bits of each word. Above the line the second model is surprised more, below it less.",
    ),
    h(
      "div",
      { class: "controls stack" },
      h(
        "div",
        { class: "row even roomy" },
        field("First model", first),
        field("Second model", second),
      ),
      field("A sentence, or several lines", box),
      h(
        "div",
        { class: "row even roomy" },
        field(
          "Or a file",
          file,
          "Plain text, one sentence a line; it is only sent to this server.",
        ),
        field("Lines", order),
      ),
    ),
    asker.element,
    result,
  );
  update(address);
  return { update, close: () => asker.cancel() };

  function update({ query }) {
    const known = (name, other) =>
      models.some((one) => one.model === query.get(name)) ? query.get(name) : other;
    first.value = known("a", models[0].model);
    second.value = known("b", models[1].model);
    box.value = query.get("text") ?? EXAMPLE;
    run(box.value);
  }

  async function readFile() {
    if (!file.files[0]) return;
    const content = await file.files[0].text();
    box.value = "";
    run(content.replace(/\n+$/, ""));
  }

  function run(wanted) {
    text = wanted;
    settle(format("compare", [], { a: first.value, b: second.value, text: box.value }));
    if (text.trim() === "") {
      asker.cancel();
      answer = null;
      put(result);
      return;
    }
    const asked = `compare?models=${encodeURIComponent(first.value)},${encodeURIComponent(second.value)}`;
    asker.ask(
      (signal, progress) => compared(asked, portions(text, limits.all_text), signal, progress),
      show,
      () => {
        answer = null;
        put(result);
      },
    );
  }

  function show(found) {
    if (!found) return;
    answer = found;
    const [a, b] = found.names;
    const { bits: total, words, perplexity_per_word: perplexity } = found.total;
    const lines =
      order.value === "text"
        ? found.lines
        : [...found.lines].sort((x, y) => Math.abs(difference(y)) - Math.abs(difference(x)));
    const known = lines.flatMap((line) => line.words.map((word) => Math.abs(word.difference ?? 0)));
    const scale = known.reduce((most, one) => Math.max(most, one), 1);
    put(
      result,
      facts([
        [`${a}: bits`, bits(total[0] ?? Infinity), total[0]],
        [`${b}: bits`, bits(total[1] ?? Infinity), total[1]],
        total[0] !== null &&
          total[1] !== null && ["difference", signed(total[1] - total[0]), total[1] - total[0]],
        [`${a}: perplexity a word`, number(perplexity[0] ?? Infinity), perplexity[0]],
        [`${b}: perplexity a word`, number(perplexity[1] ?? Infinity), perplexity[1]],
        ["words and ends", whole(words), words],
      ]),
      lines.slice(0, LINES).map((line) => lineCard(line, found.names, scale)),
      lines.length > LINES &&
        h(
          "p",
          { class: "soft" },
          `The first ${LINES} of ${whole(lines.length)} lines are shown; the figures above are of all.`,
        ),
    );
  }
}

/** The lines of a text in portions of at most so many characters, as far as the lines allow it. */
function portions(text, most) {
  if (text.length > MOST)
    throw new Refusal(
      `the file has ${whole(text.length)} characters; at most ${whole(MOST)} are compared here, and bighmm eval takes any file`,
    );
  const found = [];
  let size = Infinity;
  for (const line of text.replaceAll("\r\n", "\n").split("\n")) {
    if (line.trim() === "") continue;
    if (size + line.length + 1 > most) {
      found.push([]);
      size = 0;
    }
    found.at(-1).push(line);
    size += line.length + 1;
  }
  return found.map((lines) => lines.join("\n"));
}

/** The answer about all portions, which are asked one after the other. */
async function compared(asked, texts, signal, progress) {
  const answers = [];
  for (const [i, text] of texts.entries()) {
    const part = (share) => progress((i + (share ?? 0)) / texts.length);
    if (texts.length > 1) part(0);
    answers.push(await ask(asked, { body: { text }, signal, progress: part }));
  }
  if (answers.length === 1) return answers[0];
  const words = answers.reduce((sum, { total }) => sum + total.words, 0);
  const sums = answers[0].total.bits.map((_, model) =>
    answers.every(({ total }) => total.bits[model] !== null)
      ? answers.reduce((sum, { total }) => sum + total.bits[model], 0)
      : null,
  );
  return {
    ...answers[0],
    lines: answers.flatMap(({ lines }) => lines),
    total: {
      bits: sums,
      words,
      perplexity_per_word: sums.map((sum) => (sum === null ? null : 2 ** (sum / words))),
    },
  };
}

function difference(line) {
  const [a, b] = line.log_prob;
  return a === null || b === null ? Infinity : (a - b) / Math.LN2;
}

function lineCard(line, names, scale) {
  const words = line.words.map((word) => {
    const value = word.difference;
    const part = Math.min(1, Math.abs(value ?? scale) / scale);
    const side = value === null ? "none" : value > 0 ? "more" : "less";
    return h(
      "li",
      { class: "word" },
      h("span", { class: "face" }, word.word ?? "end"),
      h(
        "span",
        { class: "versus-frame", "aria-hidden": "true" },
        h("span", { class: `versus-bar ${side}`, style: { height: `${50 * part}%` } }),
      ),
      h(
        "span",
        { class: "bits", data: { value: value ?? "" } },
        value === null ? "∞" : signed(value),
      ),
    );
  });
  const rows = line.words.map((word) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, word.word ?? "end"),
      word.bits.map((one) =>
        h("td", { class: "num", data: { value: one ?? "" } }, bits(one ?? Infinity)),
      ),
      h("td", { class: "num" }, word.difference === null ? "–" : signed(word.difference)),
    ),
  );
  return h(
    "article",
    { class: "card" },
    h("ol", { class: "strip compare", "aria-label": "Differences word by word" }, words),
    h(
      "details",
      {},
      h("summary", {}, "As a table"),
      h(
        "div",
        { class: "scroll", role: "region", "aria-label": "Bits", tabindex: 0 },
        h(
          "table",
          { class: "data" },
          h("caption", { class: "unseen" }, "Bits of each word"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, "word"),
              names.map((name) => h("th", { scope: "col", class: "num" }, name)),
              h("th", { scope: "col", class: "num" }, "difference"),
            ),
          ),
          h("tbody", {}, rows),
        ),
      ),
    ),
  );
}
