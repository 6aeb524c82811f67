// Parts that several pages use: fields, bars of probabilities, links to states, tables with keys.

import { h, uniqueId } from "./dom.js";
import { format } from "./address.js";
import { prob } from "./numbers.js";

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** The head of a page: its name and one sentence about it. */
export function heading(title, ...about) {
  return h(
    "header",
    { class: "head" },
    h("h1", { tabindex: -1 }, title),
    about.length > 0 && h("p", { class: "lead" }, about),
  );
}

/** A control with its label, and a hint below it. */
export function field(label, control, hint = null) {
  control.id ||= uniqueId("field");
  const about = hint && h("p", { class: "hint", id: `${control.id}-hint` }, hint);
  if (about) control.setAttribute("aria-describedby", about.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, about);
}

/** A check box with its label. */
export function check(label, checked, change) {
  const box = h("input", {
    type: "checkbox",
    checked,
    id: uniqueId("check"),
    on: { change: () => change(box.checked) },
  });
  return h("div", { class: "check" }, box, h("label", { for: box.id }, label));
}

/** A list of facts: [[name, value, exact?], …]. */
export function facts(rows) {
  return h(
    "dl",
    { class: "facts" },
    rows
      .filter(Boolean)
      .map(([name, value, exact]) =>
        h(
          "div",
          {},
          h("dt", {}, name),
          h("dd", exact === undefined ? {} : { data: { value: exact } }, value),
        ),
      ),
  );
}

/** A table of words and probabilities with bars; `marked` is the word to point out. */
export function probTable(caption, rows, { first = "word", marked = null } = {}) {
  const most = Math.max(1e-300, ...rows.map((row) => row.prob));
  return h(
    "table",
    { class: "probs" },
    h("caption", {}, caption),
    h(
      "thead",
      { class: "unseen" },
      h("tr", {}, h("th", { scope: "col" }, first), h("th", { scope: "col" }, "probability")),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          { class: marked !== null && row.word === marked ? "marked" : null },
          h("th", { scope: "row" }, row.face ?? row.word),
          h(
            "td",
            { data: { value: row.prob } },
            h(
              "span",
              { class: "fill-frame", "aria-hidden": "true" },
              row.prob > 0 &&
                h("span", { class: "fill", style: { width: `${(100 * row.prob) / most}%` } }),
            ),
            h("span", { class: "num" }, prob(row.prob)),
          ),
        ),
      ),
    ),
  );
}

/** A link to a state, by its name if a person gave one, and its words. */
export function stateLink({ state, name = null, words = [] }, count = 4) {
  const listed = words.slice(0, count).map((word) => (typeof word === "string" ? word : word.word));
  return h(
    "span",
    { class: "state-link" },
    h(
      "a",
      { href: format("states", [state]), title: name, data: { state } },
      name ? `${state} · ${name}` : `${state}`,
    ),
    listed.length > 0 && h("small", {}, listed.join(" ")),
  );
}

/** Colours an element by a probability from 0 to 1; see .heat in parts.css. */
export function heat(element, value) {
  element.classList.add("heat");
  element.classList.toggle("strong", value > 0.66);
  element.style.setProperty("--p", String(Math.max(0, Math.min(1, value || 0))));
  return element;
}

/** Arrow keys move between the `[data-cell]` elements of a table's rows; one of them has the tab stop. */
export function gridKeys(table) {
  const rows = [...table.rows]
    .map((row) => [...row.querySelectorAll("[data-cell]")])
    .filter((cells) => cells.length);
  rows.flat().forEach((cell, i) => {
    cell.tabIndex = i === 0 ? 0 : -1;
  });
  table.addEventListener("keydown", (event) => {
    const step = MOVES[event.key];
    const row = rows.findIndex((cells) => cells.includes(event.target));
    if (!step || row < 0) return;
    event.preventDefault();
    const next = rows[Math.max(0, Math.min(rows.length - 1, row + step[0]))];
    const column = rows[row].indexOf(event.target) + step[1];
    const cell = next[Math.max(0, Math.min(next.length - 1, column))];
    for (const one of rows.flat()) one.tabIndex = one === cell ? 0 : -1;
    cell.focus();
  });
  return table;
}

/** On a touch screen the first tap on a link of a table shows what a pointer shows, the second opens it. */
export function tapTwice(table) {
  let [touched, tapped] = [false, null];
  table.addEventListener("pointerdown", (event) => {
    touched = event.pointerType === "touch";
  });
  table.addEventListener("click", (event) => {
    const link = event.target.closest("[data-cell]");
    if (!link || !touched || event.detail === 0 || link === tapped) return; // 0: by a key
    event.preventDefault();
    tapped = link;
  });
  return table;
}

/** A note that something is not there, and why. */
export function absent(sentence) {
  return h("p", { class: "message" }, sentence);
}
