// A sentence as a strip of words: under each its surprisal as a bar and its state on the best path.
// A click blanks a word, dragging (or Shift and arrow keys, then Enter) blanks several as one gap.

import { h, put } from "./dom.js";
import { format } from "./address.js";
import { bits } from "./numbers.js";
import { mark } from "./units.js";

const LEAST_SCALE = 12; // bits that fill a bar at least, so that small surprisals look small

export class WordStrip {
  /** blank(from, to), restore(gap) and resize(gap, least, most) are called for what a person does. */
  constructor({ label, editable, blank, restore, resize }) {
    Object.assign(this, { editable, blank, restore, resize });
    this.range = null; // [first, last] that is being selected
    this.dragging = null; // ends what is listened to while a pointer selects it
    this.focus = 0;
    this.element = h("ol", {
      class: "strip",
      "aria-label": label,
      on: editable
        ? {
            keydown: (event) => this.#key(event),
            pointerdown: (event) => this.#down(event),
            focusin: (event) => this.#focused(event),
          }
        : {},
    });
  }

  /**
   * units of `units.js`, and gaps over them; end: the token of the end mark;
   * blankable: whether words are buttons.
   */
  show(units, gaps, end = null, blankable = true) {
    Object.assign(this, { units, gaps, blankable: blankable && this.editable });
    this.#stop();
    const all = [...units.flatMap((unit) => unit.tokens), ...(end ? [end] : [])];
    const scale = Math.max(LEAST_SCALE, ...all.map((token) => token.bits).filter(Number.isFinite));
    const focused = this.element.contains(document.activeElement);
    const items = [];
    for (let i = 0; i < units.length; i += 1) {
      const gap = gaps.find((one) => one.from === i);
      items.push(gap ? this.#gap(gap) : this.#word(i, units[i], scale));
      if (gap) i = gap.to;
    }
    if (end)
      items.push(
        h(
          "li",
          { class: "word end" },
          h("span", { class: "face", title: "The end of the text" }, "end"),
          token(end, scale),
        ),
      );
    put(this.element, items);
    this.#rove(Math.min(this.focus, units.length - 1), focused);
  }

  #word(index, unit, scale) {
    const face = this.blankable
      ? h(
          "button",
          {
            type: "button",
            class: "face",
            tabindex: -1,
            data: { index },
            title: "Blank this word",
          },
          unit.text,
        )
      : h("span", { class: "face" }, unit.text);
    return h(
      "li",
      { class: "word" },
      face,
      h(
        "div",
        { class: "tokens" },
        unit.tokens.map((one) => token(one, scale, unit.tokens.length > 1)),
      ),
    );
  }

  #gap(gap) {
    const stood = this.units
      .slice(gap.from, gap.to + 1)
      .map((unit) => unit.text)
      .join(" ");
    const face = this.blankable
      ? h(
          "button",
          {
            type: "button",
            class: "face",
            tabindex: -1,
            data: { index: gap.from, gap: "" },
            "aria-label": `gap, ${stood} stood here; put it back`,
            title: "Put the words back",
            on: { click: () => this.restore(gap) },
          },
          mark(gap),
        )
      : h("span", { class: "face" }, mark(gap));
    return h(
      "li",
      { class: "word gap" },
      face,
      h("s", { class: "stood" }, stood),
      this.blankable && this.#lengths(gap),
    );
  }

  #lengths(gap) {
    const choices = [
      [1, 1],
      [2, 2],
      [3, 3],
      [4, 4],
      [5, 5],
      [6, 6],
      [1, 2],
      [1, 3],
      [1, 4],
    ];
    if (!choices.some(([a, b]) => a === gap.least && b === gap.most))
      choices.unshift([gap.least, gap.most]);
    const words = ([a, b]) =>
      a === b ? `${a} ${a === 1 ? "word" : "words"}` : `${a} to ${b} words`;
    const chosen = `${gap.least}-${gap.most}`;
    return h(
      "select",
      {
        "aria-label": "Length of the gap",
        class: "small",
        on: { change: (event) => this.resize(gap, ...event.target.value.split("-").map(Number)) },
      },
      choices.map((one) =>
        h("option", { value: one.join("-"), selected: one.join("-") === chosen }, words(one)),
      ),
    );
  }

  #faces() {
    return [...this.element.querySelectorAll("button.face")];
  }

  #rove(index, focus) {
    const faces = this.#faces();
    const chosen =
      faces.find((face) => Number(face.dataset.index) >= index) ?? faces[faces.length - 1];
    for (const face of faces) face.tabIndex = face === chosen ? 0 : -1;
    if (!chosen) return;
    this.focus = Number(chosen.dataset.index);
    if (focus) chosen.focus();
  }

  #focused(event) {
    const { index } = event.target.dataset;
    if (index !== undefined) this.#rove(Number(index), false);
  }

  #key(event) {
    const face = event.target.closest("button.face");
    if (!face) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const index = Number(face.dataset.index);
    if (step) {
      const faces = this.#faces();
      const next = faces[faces.indexOf(face) + step];
      if (next) {
        if (event.shiftKey) this.#select([this.range?.[0] ?? index, Number(next.dataset.index)]);
        else this.#stop();
        this.#rove(Number(next.dataset.index), true);
      }
    } else if ((event.key === "Enter" || event.key === " ") && face.dataset.gap === undefined) {
      this.#take(this.range ?? [index, index]);
    } else if (event.key === "Escape" && this.range) {
      this.#stop();
    } else {
      return;
    }
    event.preventDefault();
  }

  #down(event) {
    const face = event.target.closest("button.face");
    if (!face || event.button !== 0 || face.dataset.gap !== undefined) return;
    const index = Number(face.dataset.index);
    if (event.shiftKey) {
      this.#select([this.focus, index]);
    } else {
      this.#select([index, index]);
      this.#rove(index, true);
    }
    this.dragging?.abort();
    this.dragging = new AbortController();
    const { signal } = this.dragging; // of the window: the release may be anywhere
    addEventListener("pointermove", (moved) => this.#move(moved), { signal });
    addEventListener("pointerup", (released) => this.#up(released), { signal });
    addEventListener("pointercancel", () => this.#stop(), { signal });
  }

  #move(event) {
    const under = document
      .elementFromPoint(event.clientX, event.clientY)
      ?.closest(".word")
      ?.querySelector("button.face");
    if (under && this.element.contains(under))
      this.#select([this.range[0], Number(under.dataset.index)]);
  }

  #up(event) {
    event.preventDefault();
    this.#take(this.range);
  }

  #take([a, b]) {
    this.#stop();
    this.focus = Math.min(a, b);
    this.blank(Math.min(a, b), Math.max(a, b));
  }

  #stop() {
    this.dragging?.abort();
    this.dragging = null;
    this.#select(null);
  }

  #select(range) {
    this.range = range;
    const [low, high] = range ? [Math.min(...range), Math.max(...range)] : [0, -1];
    for (const face of this.#faces()) {
      const index = Number(face.dataset.index);
      face.classList.toggle("chosen", index >= low && index <= high && high > low);
    }
  }
}

function token(one, scale, named = false) {
  const part = Math.min(1, Math.max(0, one.bits / scale));
  return h(
    "div",
    { class: "token" },
    (named || one.unknown) && h("span", { class: "piece" }, one.word),
    h(
      "span",
      { class: "bar-frame", "aria-hidden": "true" },
      h("span", { class: "bar", style: { height: `${100 * part}%` } }),
    ),
    h(
      "span",
      { class: "bits", data: { value: one.bits } },
      bits(one.bits),
      h("span", { class: "unseen" }, " bits"),
    ),
    one.state !== undefined &&
      h(
        "a",
        {
          class: "state",
          href: format("states", [one.state]),
          title: `State ${one.state}${one.stateName ? `, ${one.stateName},` : ""} on the best path`,
          data: { state: one.state },
        },
        h("span", { class: "unseen" }, "state "),
        one.state,
        one.stateName
          ? h("small", { class: "name" }, one.stateName)
          : h("small", {}, (one.stateWords ?? []).slice(0, 2).join(" ")),
      ),
  );
}
