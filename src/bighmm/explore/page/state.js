// The page of one state: its words, the states around it, where it stands in the text, its name.

import { format } from "./address.js";
import { ask, Asker, capital, Refusal } from "./asking.js";
import { h, put } from "./dom.js";
import { number, prob, share } from "./numbers.js";
import { absent, facts, field, heading, probTable, stateLink } from "./parts.js";
import { isExport } from "./stored.js";

const CONTEXTS = 12;
const AGAIN = 1500; // ms until contexts are asked for again while the text is being read

export function statePage(main, address, about) {
  const id = address.parts[0];
  const asker = new Asker("Reading the state");
  const naming = new Asker("Saving the name");
  const reading = new Asker("Looking for contexts");
  const body = h("div", { class: "stack" });
  const contexts = h("div", { "aria-live": "polite" });
  let timer = 0;
  const head = heading(`State ${id}`);
  put(main, head, asker.element, body);
  asker.ask(
    (signal, progress) => ask(`states/${encodeURIComponent(id)}`, { signal, progress }),
    show,
  );
  return { title: `State ${id}`, close };

  function call(name) {
    head.querySelector("h1").textContent = name ? `State ${id} · ${name}` : `State ${id}`;
  }

  function show(state) {
    call(state.name);
    const to = (number, words, rel) =>
      number === null
        ? h("span", { class: "soft" }, words)
        : h("a", { href: format("states", [number]), rel }, words);
    const name = h("input", {
      id: "name",
      value: state.name ?? "",
      maxlength: 200,
      autocomplete: "off",
      disabled: isExport(),
    });
    put(
      body,
      h(
        "nav",
        { class: "row", "aria-label": "Neighbouring states" },
        to(state.lower, "← previous", "prev"),
        h("a", { href: format("states") }, "all states"),
        to(state.higher, "next →", "next"),
      ),
      facts([
        ["share of the text", share(state.share), state.share ?? undefined],
        ["entropy, bits", number(state.entropy_bits), state.entropy_bits],
        state.prob_end !== undefined && ["p(end of text)", prob(state.prob_end), state.prob_end],
        state.block !== null && [
          "block",
          h("a", { href: format("blocks", [state.block]) }, state.block),
        ],
      ]),
      h(
        "form",
        { class: "controls row end", on: { submit: (event) => save(event, name) } },
        h(
          "div",
          { class: "half" },
          field(
            "Name",
            name,
            isExport() ? null : "Names are kept with the model; export them on the page States.",
          ),
        ),
        !isExport() && h("button", { type: "submit" }, "Save the name"),
        naming.element,
      ),
      h(
        "div",
        { class: "columns" },
        h("section", { class: "card" }, probTable("Words", state.words)),
        h("section", { class: "card" }, neighbours("After it", state.next)),
        h(
          "section",
          { class: "card" },
          neighbours("Before it", state.previous),
          state.previous_weights === "uniform" &&
            h(
              "p",
              { class: "hint" },
              "All states count alike as predecessors: without the corpus their shares are not known.",
            ),
        ),
      ),
      h(
        "section",
        { class: "card stack" },
        h("h2", {}, "Where it is most certain"),
        reading.element,
        contexts,
      ),
    );
    if (state.contexts) showContexts({ contexts: state.contexts });
    else loadContexts();
  }

  function loadContexts() {
    clearTimeout(timer);
    if (!about.corpus.present) {
      put(contexts, absent(capital(about.corpus.why)));
      return;
    }
    reading.ask(
      (signal) => ask(`states/${encodeURIComponent(id)}/contexts?size=${CONTEXTS}`, { signal }),
      showContexts,
    );
  }

  function showContexts({ contexts: rows, survey }) {
    if (survey?.state === "running" && rows.length === 0) {
      put(
        contexts,
        h("p", { class: "soft" }, `The text is being read: ${share(survey.fraction ?? 0)}.`),
      );
      timer = setTimeout(loadContexts, AGAIN);
    } else if (rows.length === 0) {
      put(contexts, absent(survey?.message ?? "It is not the state of any word of the text."));
    } else {
      put(
        contexts,
        h(
          "table",
          { class: "data contexts", role: "table" }, // roles are said again, as in states.js
          h("caption", { class: "unseen" }, "Contexts"),
          h(
            "thead",
            { class: "unseen", role: "rowgroup" },
            h(
              "tr",
              { role: "row" },
              ["probability", "before", "word", "after"].map((one) =>
                h("th", { scope: "col", role: "columnheader" }, one),
              ),
            ),
          ),
          h(
            "tbody",
            { role: "rowgroup" },
            rows.map((row) =>
              h(
                "tr",
                { role: "row" },
                h("td", { class: "num", role: "cell", data: { value: row.prob } }, prob(row.prob)),
                h("td", { class: "before", role: "cell" }, row.before.join(" ")),
                h("td", { role: "cell" }, h("b", {}, row.word)),
                h("td", { class: "after", role: "cell" }, row.after.join(" ")),
              ),
            ),
          ),
        ),
      );
    }
  }

  function save(event, box) {
    event.preventDefault();
    naming.ask(
      (signal) =>
        ask(`names/${encodeURIComponent(id)}`, {
          method: "PUT",
          body: { name: box.value.trim() },
          signal,
        }),
      ({ names }) => {
        if ((names[id] ?? "") !== box.value.trim())
          throw new Refusal("the server did not keep the name");
        call(names[id]);
        naming.say(box.value.trim() ? "Saved." : "Removed.");
      },
    );
  }

  function close() {
    clearTimeout(timer);
    for (const one of [asker, naming, reading]) one.cancel();
  }
}

function neighbours(caption, rows) {
  if (rows.length === 0) return [h("h3", {}, caption), h("p", { class: "soft" }, "None.")];
  return probTable(
    caption,
    rows.map((row) => ({ prob: row.prob, face: stateLink(row) })),
    { first: "state" },
  );
}
