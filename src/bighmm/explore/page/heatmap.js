// A square heat map on a canvas, for hundreds of rows: zoom, pan, and a cursor for pointer and keys.

import { h, uniqueId } from "./dom.js";
import { prob } from "./numbers.js";

const MOST_ZOOM = 64; // pixels of a cell at most
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

export class HeatMap {
  /**
   * values: rows of probabilities; describe(row, column) are words for a cell;
   * open(row, column) opens one, null where there is nothing to open.
   */
  constructor({ label, values, describe, open }) {
    Object.assign(this, { values, describe, open });
    this.rows = values.length;
    this.columns = values[0]?.length ?? 0;
    this.cell = [0, 0];
    this.view = { row: 0, column: 0, size: Math.max(this.rows, this.columns) };
    this.drag = null;
    this.tapped = null; // the cell of the last tap
    const help = uniqueId("help");
    this.canvas = h("canvas", {
      class: "map",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": label,
      "aria-describedby": help,
      on: {
        keydown: (event) => this.#key(event),
        wheel: (event) => this.#wheel(event),
        pointerdown: (event) => this.#down(event),
        pointermove: (event) => this.#move(event),
        pointerup: (event) => this.#up(event),
        pointercancel: () => {
          this.drag = null;
        },
      },
    });
    this.said = h("p", { class: "readout", role: "status" });
    const button = (name, words, act) =>
      h(
        "button",
        { type: "button", class: "quiet", "aria-label": words, title: words, on: { click: act } },
        name,
      );
    this.element = h(
      "div",
      { class: "map-frame" },
      h(
        "div",
        { class: "controls row" },
        button("+", "Zoom in", () => this.zoom(0.5)),
        button("−", "Zoom out", () => this.zoom(2)),
        button("Whole map", "Show the whole map", () => this.zoom(Infinity)),
        h(
          "span",
          { class: "legend" },
          "0 ",
          h("i", { class: "ramp" }),
          ` ${prob(this.#highest())}`,
        ),
      ),
      this.canvas,
      this.said,
      h(
        "p",
        { class: "hint", id: help },
        `Arrow keys move, + and − zoom, 0 shows all${open ? ", Enter opens a cell" : ""}. Drag to pan; hold Ctrl and turn the wheel to zoom.${open ? " A click opens a cell; on a touch screen, a second tap." : ""}`,
      ),
    );
    this.observer = new ResizeObserver(() => this.#draw());
    this.observer.observe(this.canvas);
    this.repaint = () => {
      this.image = null;
      this.#draw();
    };
    document.addEventListener("themechange", this.repaint);
    this.#tell();
  }

  close() {
    this.observer.disconnect();
    document.removeEventListener("themechange", this.repaint);
  }

  /** Shows `factor` times as many cells, around the cursor. */
  zoom(factor) {
    const all = Math.max(this.rows, this.columns);
    const least = Math.min(all, Math.max(4, this.canvas.clientWidth / MOST_ZOOM));
    const size = Math.min(all, Math.max(least, this.view.size * factor));
    const [row, column] = this.cell;
    const place = (at, first) => at + 0.5 - ((at + 0.5 - first) / this.view.size) * size;
    this.view = { row: place(row, this.view.row), column: place(column, this.view.column), size };
    this.#clamp();
    this.#draw();
  }

  /** Puts the cursor on a cell and brings it into view. */
  choose(row, column) {
    this.cell = [row, column];
    const { size } = this.view;
    const inside = (at, first) => Math.min(at, Math.max(at + 1 - size, first));
    this.view = { row: inside(row, this.view.row), column: inside(column, this.view.column), size };
    this.#clamp();
    this.#draw();
    this.#tell();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = MOVES[event.key];
    const many = event.shiftKey ? 10 : 1;
    const within = (at, count) => Math.max(0, Math.min(count - 1, at));
    if (step)
      this.choose(
        within(this.cell[0] + many * step[0], this.rows),
        within(this.cell[1] + many * step[1], this.columns),
      );
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.zoom(Infinity);
    else if (event.key === "Enter" && this.open) this.open(...this.cell);
    else return;
    event.preventDefault();
  }

  #wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const under = this.#under(event);
    if (under) this.cell = under;
    this.zoom(event.deltaY < 0 ? 0.8 : 1.25);
    this.#tell();
  }

  #down(event) {
    this.drag = { x: event.clientX, y: event.clientY, view: { ...this.view }, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  #move(event) {
    if (this.drag) {
      const pixels = this.canvas.clientWidth / this.view.size;
      const [dx, dy] = [event.clientX - this.drag.x, event.clientY - this.drag.y];
      this.drag.moved ||= Math.hypot(dx, dy) > 5;
      if (!this.drag.moved) return;
      this.view = {
        ...this.view,
        row: this.drag.view.row - dy / pixels,
        column: this.drag.view.column - dx / pixels,
      };
      this.#clamp();
      this.#draw();
      return;
    }
    const under = this.#under(event);
    if (under && (under[0] !== this.cell[0] || under[1] !== this.cell[1])) {
      this.cell = under;
      this.#draw();
      this.#tell();
    }
  }

  #up(event) {
    const { drag } = this;
    this.drag = null;
    const under = this.#under(event);
    if (!drag || drag.moved || !under) return;
    this.choose(...under);
    const place = under.join();
    const first = event.pointerType === "touch" && this.tapped !== place; // which only tells
    this.tapped = place;
    if (!first) this.open?.(...under);
  }

  #under(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor(
      this.view.row + ((event.clientY - box.top) / box.width) * this.view.size,
    );
    const column = Math.floor(
      this.view.column + ((event.clientX - box.left) / box.width) * this.view.size,
    );
    return row >= 0 && row < this.rows && column >= 0 && column < this.columns
      ? [row, column]
      : null;
  }

  #clamp() {
    const within = (first, count) =>
      Math.max(0, Math.min(Math.max(0, count - this.view.size), first));
    this.view.row = within(this.view.row, this.rows);
    this.view.column = within(this.view.column, this.columns);
  }

  #tell() {
    if (this.rows) this.said.textContent = this.describe(...this.cell);
  }

  #highest() {
    this.highest ??= this.values.reduce(
      (most, row) => row.reduce((a, b) => Math.max(a, b), most),
      0,
    );
    return this.highest;
  }

  #draw() {
    const side = this.canvas.clientWidth;
    if (!side || !this.rows) return;
    const ratio = globalThis.devicePixelRatio || 1;
    const pixels = Math.round(side * ratio);
    if (this.canvas.width !== pixels) this.canvas.width = this.canvas.height = pixels;
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    this.image ??= this.#paint(
      colour(style.getPropertyValue("--surface")),
      colour(style.getPropertyValue("--heat")),
    );
    const { row, column, size } = this.view;
    context.imageSmoothingEnabled = size > pixels;
    context.clearRect(0, 0, pixels, pixels);
    context.drawImage(this.image, column, row, size, size, 0, 0, pixels, pixels);
    const unit = pixels / size;
    context.strokeStyle = style.getPropertyValue("--warm");
    context.lineWidth = 2 * ratio;
    const edge = Math.max(unit, 6 * ratio);
    context.strokeRect(
      (this.cell[1] - column) * unit - (edge - unit) / 2,
      (this.cell[0] - row) * unit - (edge - unit) / 2,
      edge,
      edge,
    );
  }

  /** One pixel for each cell; the root makes small probabilities visible, as the legend's ramp does. */
  #paint(low, high) {
    const image = document.createElement("canvas");
    [image.width, image.height] = [this.columns, this.rows];
    const context = image.getContext("2d");
    const data = context.createImageData(this.columns, this.rows);
    const most = this.#highest() || 1;
    let at = 0;
    for (const row of this.values) {
      for (const value of row) {
        const part = Math.sqrt(value / most);
        for (let i = 0; i < 3; i += 1) data.data[at + i] = low[i] + part * (high[i] - low[i]);
        data.data[at + 3] = 255;
        at += 4;
      }
    }
    context.putImageData(data, 0, 0);
    return image;
  }
}

/** [red, green, blue] of #rrggbb. */
function colour(text) {
  const found = /^\s*#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})\s*$/i.exec(text);
  return found ? found.slice(1).map((part) => parseInt(part, 16)) : [128, 128, 128];
}
