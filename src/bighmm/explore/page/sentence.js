// The page Sentence: one sentence looked at from all sides, next to a pinned one.

import { format, settle } from "./address.js";
import { h, put, debounced } from "./dom.js";
import { signed } from "./numbers.js";
import { field, heading } from "./parts.js";
import { isExport, storedSentences } from "./stored.js";
import { SentenceView } from "./sentence_view.js";

const TYPING = 200; // ms after the last key until the server is asked
const EXAMPLE = "the name of the file";
const HELP =
  "___ is a gap of one word, ___3 of three, ___1-4 of one to four. With the keyboard: arrow keys move between words, Enter blanks, Shift with arrow keys selects.";

export function sentencePage(main, address, about) {
  const box = isExport()
    ? h(
        "select",
        { id: "sentence", on: { change: () => typed() } },
        storedSentences().map((text) => h("option", { value: text }, text)),
      )
    : h("textarea", {
        rows: 2,
        id: "sentence",
        spellcheck: false,
        autocapitalize: "off",
        autocomplete: "off",
        on: { input: debounced(() => typed(), TYPING) },
      });
  const view = new SentenceView({ label: "Sentence", about, editable: true, changed });
  const pinned = new SentenceView({
    label: "Pinned sentence",
    about,
    editable: false,
    changed: difference,
  });
  const pin = h(
    "button",
    {
      type: "button",
      id: "pin",
      on: {
        click: () => {
          setPin(view.value());
          changed();
        },
      },
    },
    "Pin this sentence",
  );
  const unpin = h(
    "button",
    {
      type: "button",
      class: "quiet",
      on: {
        click: () => {
          setPin(null);
          changed();
        },
      },
    },
    "Unpin",
  );
  const versus = h("p", { class: "versus", role: "status" });
  const right = h(
    "section",
    { class: "side pinned", "aria-label": "Pinned", hidden: true },
    h("div", { class: "row between" }, h("h2", {}, "Pinned"), unpin),
    pinned.element,
  );
  const sides = h(
    "div",
    { class: "sides" },
    h(
      "section",
      { class: "side", "aria-label": "This sentence" },
      h("h2", { class: "only-two" }, "This sentence"),
      view.element,
    ),
    right,
  );
  put(
    main,
    heading(
      "Sentence",
      "Every number is exact. Click a word to blank it; drag over several for one longer gap.",
    ),
    h(
      "div",
      { class: "controls" },
      field("A sentence", box, isExport() ? null : HELP),
      !isExport() && pin,
    ),
    versus,
    sides,
  );
  update(address);
  return { update, close };

  function update({ query }) {
    const text = query.get("text") ?? (isExport() ? (storedSentences()[0] ?? "") : EXAMPLE);
    box.value = text;
    setPin(query.has("pin") ? { text: query.get("pin"), gaps: query.get("pin-gaps") ?? "" } : null);
    view.show({ text, gaps: query.get("gaps") ?? "" });
  }

  function typed() {
    view.show({ text: box.value.replace(/\s*\n\s*/g, " "), gaps: "" });
    changed();
  }

  function changed() {
    const kept = right.hidden ? null : pinned.value();
    const { text, gaps } = view.value();
    const hash = format("sentence", [], { text, gaps, pin: kept?.text, "pin-gaps": kept?.gaps });
    const mark = hash.includes("?") ? "&" : "?";
    settle(text === "" ? `${hash}${mark}text=` : hash); // an empty text is not the example
    difference();
  }

  function setPin(value) {
    right.hidden = value === null;
    sides.classList.toggle("two", value !== null);
    if (value) pinned.show(value);
    else pinned.clear();
  }

  function difference() {
    const [here, there] = [view.bits(), pinned.bits()];
    versus.textContent =
      right.hidden || here === null || there === null
        ? ""
        : `This sentence has ${signed(here - there)} bits against the pinned one.`;
  }

  function close() {
    view.close();
    pinned.close();
  }
}
