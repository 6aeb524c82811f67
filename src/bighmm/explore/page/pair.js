// The page of a pair of blocks: the states inside it and the moves between them.

import { format } from "./address.js";
import { ask, Asker } from "./asking.js";
import { h, put } from "./dom.js";
import { number, prob } from "./numbers.js";
import { facts, gridKeys, heading, heat, stateLink } from "./parts.js";

const INSIDE = 24; // states on each side

export function pairPage(main, from, to) {
  const asker = new Asker("Reading the states");
  const body = h("div", { class: "stack" });
  put(main, heading(`From block ${from} to block ${to}`), asker.element, body);
  asker.ask(
    (signal, progress) =>
      ask(`blocks/${encodeURIComponent(from)}/to/${encodeURIComponent(to)}?size=${INSIDE}`, {
        signal,
        progress,
      }),
    show,
  );
  return { title: `Blocks ${from} to ${to}`, close: () => asker.cancel() };

  function show(pair) {
    const most = Math.max(1e-300, ...pair.probs.flat());
    const said = h(
      "p",
      { class: "readout", role: "status" },
      "Point at a cell, or move to it with the arrow keys, for its numbers.",
    );
    const words = (state) =>
      state.words
        .slice(0, 3)
        .map((word) => word.word ?? word)
        .join(" ");
    const cell = (row, column, value) => {
      const tell = () =>
        put(
          said,
          `${row.state} (${words(row)}) → ${column.state} (${words(column)}): `,
          h("b", {}, prob(value)),
        );
      const one = h("span", {
        class: "cell",
        data: { cell: "", value },
        "aria-label": `${row.state} to ${column.state}: ${prob(value)}`,
        role: "img",
        on: { pointerenter: tell, focus: tell },
      });
      return h("td", {}, heat(one, Math.sqrt(value / most)));
    };
    put(
      body,
      h(
        "nav",
        { class: "row", "aria-label": "Blocks" },
        h("a", { href: format("blocks") }, "all blocks"),
        h("a", { href: format("blocks", [from]) }, `block ${from}`),
        h("a", { href: format("blocks", [to]) }, `block ${to}`),
      ),
      facts([
        ["p(next block | this block)", prob(pair.prob), pair.prob],
        ["strongest colour", number(most)],
      ]),
      h(
        "section",
        { class: "card" },
        h(
          "p",
          { class: "hint" },
          "p(next state | state). Rows are states of the first block, the heaviest first; columns those of the second that are reached most.",
        ),
        said,
        h(
          "div",
          { class: "scroll", role: "region", "aria-label": "States of the pair", tabindex: -1 },
          gridKeys(
            h(
              "table",
              { class: "heat-table pair" },
              h("caption", { class: "unseen" }, "p(next state | state)"),
              h(
                "thead",
                {},
                h(
                  "tr",
                  {},
                  h("th", { scope: "col" }, "state"),
                  pair.columns.map((column) => h("th", { scope: "col" }, stateLink(column, 1))),
                ),
              ),
              h(
                "tbody",
                {},
                pair.rows.map((row, i) =>
                  h(
                    "tr",
                    {},
                    h("th", { scope: "row" }, stateLink(row, 2)),
                    pair.columns.map((column, j) => cell(row, column, pair.probs[i][j])),
                  ),
                ),
              ),
            ),
          ),
        ),
      ),
    );
  }
}
