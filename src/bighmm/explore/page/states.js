// The page States: a table of all states that one can search, sort and page through.

import { format, settle } from "./address.js";
import { ask, Asker } from "./asking.js";
import { debounced, download, h, put } from "./dom.js";
import { bits, share, whole } from "./numbers.js";
import { absent, field, heading } from "./parts.js";

const TYPING = 200;
const SIZE = 50;
const AGAIN = 1500; // ms until a table is asked for again while shares are being counted
const COLUMNS = [
  { key: "number", title: "state", first: "asc" },
  { key: "", title: "words" },
  { key: "share", title: "share", first: "desc", numeric: true, hint: "of the text" },
  { key: "entropy", title: "entropy", first: "asc", numeric: true, hint: "bits" },
  { key: "block", title: "block", first: "asc", numeric: true },
];

export function statesPage(main, address, about) {
  if (!about.has_states) {
    put(main, heading("States"), absent("This model has no hidden states."));
    return {};
  }
  const asker = new Asker("Looking for states");
  const wanted = { query: "", sort: "", order: "", block: "", page: 0 };
  const box = h("input", {
    type: "search",
    id: "search",
    autocomplete: "off",
    spellcheck: false,
    on: { input: debounced(() => go({ query: box.value, page: 0 }), TYPING) },
  });
  const count = h("p", { class: "soft", role: "status" });
  const table = h("div", {
    class: "card scroll",
    role: "region",
    "aria-label": "States",
    tabindex: -1,
  });
  const pager = h("nav", { class: "row pager", "aria-label": "Pages of the table" });
  let timer = 0;
  put(
    main,
    heading(
      "States",
      "A state is known by its words. The share is how much of the text it is expected to emit; the entropy says how many words it spreads over.",
    ),
    h(
      "div",
      { class: "controls row end" },
      h(
        "div",
        { class: "half" },
        field("Search", box, "A word or part of one, a name, or a number."),
      ),
      h(
        "button",
        { type: "button", class: "quiet", on: { click: exportNames } },
        "Export names (JSON)",
      ),
    ),
    !about.corpus.present &&
      h("p", { class: "hint" }, "Without the corpus the shares are not known."),
    asker.element,
    count,
    table,
    pager,
  );
  update(address);
  return { update, close };

  function update({ query }) {
    Object.assign(wanted, {
      query: query.get("query") ?? "",
      sort: query.get("sort") ?? (about.corpus.present ? "share" : "number"),
      order: ["asc", "desc"].includes(query.get("order")) ? query.get("order") : "",
      block: query.get("block") ?? "",
      page: Math.max(0, (Number(query.get("page")) || 1) - 1),
    });
    box.value = wanted.query;
    load();
  }

  function go(change) {
    Object.assign(wanted, change);
    settle(here(wanted));
    load();
  }

  function load() {
    clearTimeout(timer);
    const order =
      wanted.order || COLUMNS.find((column) => column.key === wanted.sort)?.first || "asc";
    const values = new URLSearchParams({
      query: wanted.query,
      sort: wanted.sort,
      order,
      block: wanted.block,
      page: wanted.page,
      size: SIZE,
    });
    asker.ask(
      (signal) => ask(`states?${values}`, { signal }),
      show,
      () => {
        for (const part of [count, table, pager]) put(part);
      },
    );
  }

  function show(answer) {
    const pages = Math.max(1, Math.ceil(answer.matching / answer.size));
    if (answer.page >= pages) {
      go({ page: pages - 1 });
      return;
    }
    const from = answer.page * answer.size;
    const last = from + answer.states.length;
    const counting =
      answer.survey?.state === "running"
        ? ` Shares are being counted: ${share(answer.survey.fraction ?? 0)}.`
        : "";
    const inBlock = wanted.block === "" ? "" : ` in block ${wanted.block}`;
    put(
      count,
      answer.matching === 0
        ? "No state matches."
        : `${whole(from + 1)} to ${whole(last)} of ${whole(answer.matching)} states${inBlock}.`,
      counting,
      wanted.block !== "" && [
        " ",
        h(
          "button",
          { type: "button", class: "quiet", on: { click: () => go({ block: "", page: 0 }) } },
          "All blocks",
        ),
      ],
    );
    put(
      table,
      h(
        "table",
        { class: "data states", role: "table" },
        h("caption", { class: "unseen" }, "States"),
        h(
          "thead",
          { role: "rowgroup" },
          h(
            "tr",
            { role: "row" },
            COLUMNS.map((column) => head(column, answer)),
          ),
        ),
        h("tbody", { role: "rowgroup" }, answer.states.map(row)),
      ),
    );
    const turn = (words, page, off) =>
      h(
        "button",
        { type: "button", class: "quiet", disabled: off, on: { click: () => go({ page }) } },
        words,
      );
    put(
      pager,
      turn("First", 0, answer.page === 0),
      turn("Previous", answer.page - 1, answer.page === 0),
      h("span", {}, `Page ${whole(answer.page + 1)} of ${whole(pages)}`),
      turn("Next", answer.page + 1, answer.page + 1 >= pages),
      turn("Last", pages - 1, answer.page + 1 >= pages),
    );
    if (answer.survey?.state === "running") timer = setTimeout(load, AGAIN);
  }

  function head(column, answer) {
    if (!column.key) return h("th", { scope: "col", role: "columnheader" }, column.title);
    const now = answer.sort === column.key ? answer.order : null;
    const next = now ? (now === "asc" ? "desc" : "asc") : column.first;
    return h(
      "th",
      {
        scope: "col",
        role: "columnheader",
        class: column.numeric ? "num" : null,
        "aria-sort": now && (now === "asc" ? "ascending" : "descending"),
      },
      h(
        "button",
        {
          type: "button",
          class: "sort",
          data: { sort: column.key },
          on: { click: () => go({ sort: column.key, order: next, page: 0 }) },
        },
        column.title,
        h("span", { "aria-hidden": "true" }, now === "asc" ? " ↑" : now === "desc" ? " ↓" : ""),
      ),
      column.hint && h("small", {}, column.hint),
    );
  }

  async function exportNames() {
    asker.ask(
      (signal) => ask("names", { signal }),
      (names) => download(`${about.name}-names.json`, `${JSON.stringify(names, null, 2)}\n`),
    );
  }

  function close() {
    clearTimeout(timer);
    asker.cancel();
  }
}

/** The roles are said again: on narrow screens the rows are laid out as grids, which would lose them. */
function row(state) {
  const cell = (props, ...children) => h("td", { role: "cell", ...props }, children);
  return h(
    "tr",
    { role: "row" },
    h(
      "th",
      { scope: "row", role: "rowheader" },
      h("a", { href: format("states", [state.state]) }, state.state),
      state.name && h("div", { class: "name" }, state.name),
    ),
    cell(
      { class: "text" },
      state.words.map(({ word }, i) => [i > 0 && " ", h("span", {}, word)]),
    ),
    cell({ class: "num", data: { value: state.share ?? "", short: "" } }, share(state.share)),
    cell(
      { class: "num", data: { value: state.entropy_bits, short: "" } },
      bits(state.entropy_bits),
    ),
    cell(
      { class: "num", data: { short: "block" } },
      state.block === null ? "–" : h("a", { href: format("blocks", [state.block]) }, state.block),
    ),
  );
}

function here({ query, sort, order, block, page }) {
  return format("states", [], { query, sort, order, block, page: page ? page + 1 : "" });
}
