// What stands in the gaps of a sentence: words at each place, and the best fillings of all gaps.

import { h } from "./dom.js";
import { number, prob } from "./numbers.js";
import { probTable } from "./parts.js";

/**
 * probs and best are answers of `fill`; stood is what was blanked, [{words, faces, fits}] of each gap
 * with its tokens, how they were typed and whether so many may stand there, or null; scored is log p of
 * the sentence as it was, or null.
 */
export function fillingParts(probs, best, stood, scored) {
  return [
    probs.lengths && lengths(probs.lengths),
    h(
      "div",
      { class: "gaps" },
      probs.gaps.map((place) => gapPlace(place, probs, stood)),
    ),
    original(best, stood, scored),
    bestTable(best),
  ];
}

function gapPlace(place, probs, stood) {
  const several = probs.gaps.filter((one) => one.gap === place.gap).length > 1;
  const { words = [], faces } = stood?.[place.gap - 1] ?? {};
  const same = words.length === probs.gaps.filter((one) => one.gap === place.gap).length;
  const marked = same ? words[place.word - 1] : null;
  const given = probs.lengths?.[0].lengths; // the words are those of the likeliest lengths
  const caption = [
    several ? `Gap ${place.gap}, word ${place.word}` : `Gap ${place.gap}`,
    given && h("small", {}, ` if the ${lengthsInWords(given)}`),
  ];
  const listed = place.words.some((one) => one.word === marked);
  return h(
    "div",
    { class: "card" },
    probTable(caption, place.words, { marked }),
    marked !== null &&
      !listed &&
      h(
        "p",
        { class: "hint" },
        `“${faces[place.word - 1]}” stood here; it is not among the likeliest ${place.words.length}.`,
      ),
  );
}

function lengths(rows) {
  return h(
    "div",
    { class: "card" },
    probTable(
      "Lengths of the gaps",
      rows.slice(0, 8).map((row) => ({ word: row.lengths.join(", "), prob: row.prob })),
      { first: "words" },
    ),
  );
}

function lengthsInWords(given) {
  return given.length === 1 ? `length is ${given[0]}` : `lengths are ${given.join(", ")}`;
}

/** p(what stood there | everything else) = p(whole text) / p(what is known). */
function original(best, stood, scored) {
  if (!stood || scored === null) return null;
  const words = h("q", {}, stood.map(({ faces }) => faces.join(" ")).join(" … "));
  if (!stood.every(({ fits }) => fits))
    return h("p", { class: "stood-prob" }, "What stood there, ", words, ", has another length.");
  const first = best.fillings?.[0];
  if (!first || first.log_prob === null) return null;
  const known = first.log_prob - first.log_prob_filling;
  const value = Math.exp(scored - known);
  return h(
    "p",
    { class: "stood-prob" },
    "What stood there, ",
    words,
    ", has probability ",
    h("b", { data: { value } }, prob(value)),
    " given everything on both sides.",
  );
}

function bestTable(best) {
  const rows = best.fillings.map((filling) =>
    h(
      "tr",
      {},
      h("td", { class: "num", data: { value: filling.prob } }, prob(filling.prob)),
      h(
        "td",
        {},
        filling.words.map((words, i) => [
          i > 0 && h("span", { class: "soft" }, " … "),
          h("b", {}, words.join(" ")),
        ]),
      ),
      h("td", { class: "text" }, filling.text),
      h("td", { class: "num", data: { value: filling.log_prob } }, number(filling.log_prob)),
    ),
  );
  return h(
    "div",
    { class: "card" },
    h(
      "div",
      { class: "scroll", role: "region", "aria-label": "Best fillings", tabindex: 0 },
      h(
        "table",
        { class: "data best-fillings" },
        h(
          "caption",
          {},
          best.exact
            ? "The likeliest fillings of all gaps together"
            : "The best fillings of all gaps that were found; likelier ones may have been missed",
        ),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col", class: "num" }, "probability"),
            h("th", { scope: "col" }, "filling"),
            h("th", { scope: "col" }, "text"),
            h("th", { scope: "col", class: "num" }, "log p(text)"),
          ),
        ),
        h("tbody", {}, rows),
      ),
    ),
  );
}
