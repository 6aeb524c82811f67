// The page Blocks: the vocabulary by block, the map of moves between blocks, and the states of a pair.

import { format } from "./address.js";
import { ask, Asker } from "./asking.js";
import { h, put } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { prob, share, whole } from "./numbers.js";
import { pairPage } from "./pair.js";
import { absent, facts, field, heading, probTable } from "./parts.js";
import { isExport } from "./stored.js";

const STRONGEST = 30; // moves in the table

export function blocksPage(main, address, about) {
  if (!about.has_blocks) {
    put(main, heading("Blocks"), absent("The words of this model are not divided into blocks."));
    return {};
  }
  const [from, , to] = address.parts;
  if (to !== undefined) return pairPage(main, from, to);
  return from !== undefined ? blockPage(main, from, about) : mapPage(main, about);
}

function noShares(about) {
  return (
    !about.corpus.present &&
    h("p", { class: "hint" }, "Without the corpus the shares are not known.")
  );
}

function mapPage(main, about) {
  const [listing, moving] = [new Asker("Reading the blocks"), new Asker("Computing the moves")];
  const [list, frame] = [h("div"), h("div")];
  let map = null;
  put(
    main,
    heading(
      "Blocks",
      "Every word belongs to one block, and only the states of that block emit it.",
    ),
    h(
      "div",
      { class: "split wide" },
      h(
        "section",
        { class: "card stack", "aria-label": "Moves" },
        h("h2", {}, "Moves between blocks"),
        h(
          "p",
          { class: "soft" },
          "Row: the block of a word. Column: the block of the next word. The stronger the colour, the likelier.",
        ),
        moving.element,
        frame,
      ),
      h(
        "section",
        { class: "card stack", "aria-label": "Vocabulary" },
        h("h2", {}, "Vocabulary"),
        noShares(about),
        listing.element,
        list,
      ),
    ),
  );
  listing.ask(
    (signal) => ask("blocks", { signal }),
    (blocks) => {
      showList(list, blocks.blocks);
      moving.ask(
        (signal, progress) => ask("blocks/moves", { signal, progress }),
        (answer) => {
          map = showMap(frame, answer, blocks.blocks);
        },
      );
    },
  );
  return {
    close() {
      listing.cancel();
      moving.cancel();
      map?.close();
    },
  };
}

function showMap(frame, { moves, weights }, blocks) {
  const words = (block) => blocks[block].words.slice(0, 3).join(" ");
  const values = moves.map((row) => row.map((value) => value ?? 0));
  const open = (row, column) => {
    location.hash = format("blocks", [row, "to", column]);
  };
  const map = new HeatMap({
    label: "Moves between blocks",
    values,
    open: isExport() ? null : open,
    describe: (row, column) =>
      `${row} (${words(row)}) → ${column} (${words(column)}): ${moves[row][column] === null ? "never left" : prob(moves[row][column])}`,
  });
  const pairs = strongest(values, STRONGEST);
  map.choose(...pairs[0].slice(1));
  const label = (i, j) =>
    isExport() ? `${i} → ${j}` : h("a", { href: format("blocks", [i, "to", j]) }, `${i} → ${j}`);
  put(
    frame,
    map.element,
    weights === "uniform" &&
      h(
        "p",
        { class: "hint" },
        "All states of a block count alike: without the corpus their shares are not known.",
      ),
    h(
      "details",
      {},
      h("summary", {}, "The strongest moves as a table"),
      h(
        "div",
        { class: "scroll", role: "region", "aria-label": "Strongest moves", tabindex: 0 },
        h(
          "table",
          { class: "data" },
          h("caption", { class: "unseen" }, "Strongest moves"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["blocks", "from", "to", "p"].map((one) => h("th", { scope: "col" }, one)),
            ),
          ),
          h(
            "tbody",
            {},
            pairs.map(([value, i, j]) =>
              h(
                "tr",
                {},
                h("th", { scope: "row" }, label(i, j)),
                h("td", {}, words(i)),
                h("td", {}, words(j)),
                h("td", { class: "num" }, prob(value)),
              ),
            ),
          ),
        ),
      ),
    ),
  );
  return map;
}

/** The n largest of the values: [[value, row, column], …]. */
function strongest(values, n) {
  const found = [];
  values.forEach((row, i) =>
    row.forEach((value, j) => {
      if (found.length === n && value <= found[n - 1][0]) return;
      const place = found.findIndex(([other]) => other < value);
      found.splice(place < 0 ? found.length : place, 0, [value, i, j]);
      if (found.length > n) found.pop();
    }),
  );
  return found;
}

function showList(list, blocks) {
  const said = h("p", { class: "soft", role: "status" });
  const body = h("tbody");
  const draw = (text) => {
    const shown = blocks.filter(
      (block) => String(block.block) === text || block.words.some((word) => word.includes(text)),
    );
    said.textContent = `${whole(shown.length)} of ${whole(blocks.length)} blocks.`;
    put(
      body,
      shown.map((block) =>
        h(
          "tr",
          {},
          h(
            "th",
            { scope: "row" },
            h("a", { href: format("blocks", [block.block]) }, block.block),
          ),
          h("td", { class: "text" }, block.words.join(" ")),
          h("td", { class: "num" }, whole(block.size)),
          h("td", { class: "num" }, share(block.share)),
        ),
      ),
    );
  };
  const box = h("input", {
    type: "search",
    autocomplete: "off",
    spellcheck: false,
    on: { input: () => draw(box.value.trim()) },
  });
  put(
    list,
    field("Search", box, "A word among the first of a block, or its number."),
    said,
    h(
      "div",
      { class: "scroll tall", role: "region", "aria-label": "Blocks", tabindex: 0 },
      h(
        "table",
        { class: "data blocks" },
        h("caption", { class: "unseen" }, "Blocks"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "block"),
            h("th", { scope: "col" }, "words"),
            h("th", { scope: "col", class: "num" }, "size"),
            h("th", { scope: "col", class: "num" }, "share"),
          ),
        ),
        body,
      ),
    ),
  );
  draw("");
}

function blockPage(main, id, about) {
  const asker = new Asker("Reading the block");
  const body = h("div", { class: "stack" });
  put(main, heading(`Block ${id}`), asker.element, body);
  asker.ask((signal) => ask(`blocks/${encodeURIComponent(id)}?size=200`, { signal }), show);
  return { title: `Block ${id}`, close: () => asker.cancel() };

  function show(block) {
    const known = block.words.some((word) => word.share !== null && word.share !== undefined);
    put(
      body,
      h(
        "nav",
        { class: "row", "aria-label": "Blocks" },
        h("a", { href: format("blocks") }, "all blocks"),
        h(
          "a",
          { href: format("states", [], { block: id }) },
          `states ${block.first_state} to ${block.last_state}`,
        ),
      ),
      facts([
        ["words", whole(block.size), block.size],
        ["share of the text", share(block.share)],
      ]),
      noShares(about),
      h(
        "section",
        { class: "card" },
        known
          ? probTable(
              "Words and their share of the block",
              block.words.map((word) => ({ word: word.word, prob: word.share ?? 0 })),
            )
          : [
              h("h2", {}, "Words"),
              h("p", { class: "text" }, block.words.map((word) => word.word).join(" ")),
            ],
        block.size > block.words.length &&
          h(
            "p",
            { class: "hint" },
            `The first ${whole(block.words.length)} of ${whole(block.size)}.`,
          ),
      ),
    );
  }
}
