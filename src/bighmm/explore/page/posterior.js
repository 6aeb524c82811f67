// The posterior of a sentence as a table: a row for each word, its likeliest states as coloured cells.

import { h, put } from "./dom.js";
import { format } from "./address.js";
import { prob } from "./numbers.js";
import { gridKeys, heat, tapTwice } from "./parts.js";

/** tokens of a `posterior` answer, and of a `tag` answer for the best path. */
export function posteriorTable(tokens, path) {
  const most = Math.max(...tokens.map((token) => token.states.length));
  const said = h(
    "p",
    { class: "readout", role: "status" },
    "Point at a cell, tap it, or move to it with the arrow keys, for its numbers.",
  );
  const faces = ({ name, words }) => name ?? words.slice(0, 3).join(" ");
  const tell = (token, state, best) =>
    put(
      said,
      h("b", {}, token.word),
      ` · state ${state.state}${state.name ? ` · ${state.name}` : ""} · p = ${prob(state.prob)}`,
      best && " · on the best path",
      h("span", { class: "soft" }, ` · ${state.words.join(" ")}`),
    );
  const rows = tokens.map((token, t) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, token.word),
      Array.from({ length: most }, (_, rank) => {
        const state = token.states[rank];
        if (!state) return h("td");
        const best = path[t]?.state === state.state;
        const show = () => tell(token, state, best);
        const cell = h(
          "a",
          {
            class: best ? "cell best" : "cell",
            href: format("states", [state.state]),
            data: { cell: "", value: state.prob, state: state.state },
            "aria-label": `state ${state.state}, ${prob(state.prob)}${best ? ", on the best path" : ""}, ${faces(state)}`,
            on: { pointerenter: show, focus: show },
          },
          h("span", {}, state.state),
          h("small", {}, faces(state)),
        );
        return h("td", {}, heat(cell, state.prob));
      }),
    ),
  );
  const table = h(
    "table",
    { class: "heat-table" },
    h("caption", { class: "unseen" }, "p(state | whole sentence)"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "word"),
        Array.from({ length: most }, (_, i) =>
          h("th", { scope: "col" }, i === 0 ? "likeliest" : `${i + 1}.`),
        ),
      ),
    ),
    h("tbody", {}, rows),
  );
  return h(
    "div",
    { class: "posterior" },
    h(
      "p",
      { class: "hint" },
      "p(state | whole sentence), the likeliest state first. An outline marks the best path.",
    ),
    said,
    h(
      "div",
      { class: "scroll", role: "region", "aria-label": "Posterior", tabindex: -1 },
      tapTwice(gridKeys(table)),
    ),
  );
}
