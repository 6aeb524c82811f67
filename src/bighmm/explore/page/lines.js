// Line charts in SVG: several series over one axis, drawn at the width there is, with a readout that
// follows the pointer or the arrow keys, and the same numbers as a table.

import { h, put, s, uniqueId } from "./dom.js";
import { number } from "./numbers.js";

const HEIGHT = 230;
const MARGIN = { top: 12, right: 14, bottom: 34, left: 58 };
const DRAWN = 1500; // points of a series at most; more cannot be seen

export class LineChart {
  /** title, x and y are words; `log` makes the y axis logarithmic. */
  constructor({ title, x, y, log = false }) {
    this.title = title;
    this.names = { x, y };
    this.log = log;
    this.series = [];
    this.at = null;
    const caption = uniqueId("chart");
    this.svg = s("svg", {
      class: "chart",
      role: "img",
      tabindex: 0,
      "aria-labelledby": caption,
      height: HEIGHT,
      on: {
        pointermove: (event) => this.#point(event),
        pointerleave: () => this.#look(null),
        keydown: (event) => this.#key(event),
      },
    });
    this.summary = h("span", { class: "unseen" });
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.table = h("div", {
      class: "scroll",
      tabindex: 0,
      role: "region",
      "aria-label": `${title}: numbers`,
    });
    this.details = h(
      "details",
      { on: { toggle: () => this.#fillTable() } },
      h("summary", {}, "As a table"),
      this.table,
    );
    this.element = h(
      "figure",
      { class: "card chart-card" },
      h("figcaption", { id: caption }, h("h2", {}, title), this.summary),
      this.svg,
      this.readout,
      this.details,
    );
    this.observer = new ResizeObserver(() => this.#draw());
    this.observer.observe(this.element);
  }

  /** series: [{name, colour, points: [[x, y], …]}], sorted by x; `x` renames the axis. */
  show(series, x = this.names.x) {
    this.names.x = x;
    this.series = series
      .map((one) => ({
        ...one,
        points: one.points.filter(([, y]) => Number.isFinite(y) && (!this.log || y > 0)),
      }))
      .filter((one) => one.points.length > 0);
    this.summary.textContent = this.series.map((one) => this.#inWords(one)).join(" ");
    this.#draw();
    this.#fillTable();
  }

  close() {
    this.observer.disconnect();
  }

  #inWords({ name, points }) {
    const [first, last] = [points[0], points[points.length - 1]];
    return `${name}: from ${number(first[1])} at ${number(first[0])} to ${number(last[1])} at ${number(last[0])} ${this.names.x}.`;
  }

  #draw() {
    const width = Math.max(200, Math.floor(this.svg.getBoundingClientRect().width));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (this.series.length === 0) {
      put(
        this.svg,
        s("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing yet"),
      );
      return;
    }
    const scale = this.#scales(width);
    const { left, right, top, bottom } = MARGIN;
    const grid = [];
    for (const tick of ticks(...scale.yRange, 5, this.log)) {
      const y = scale.y(tick);
      grid.push(s("line", { x1: left, x2: width - right, y1: y, y2: y, class: "grid" }));
      grid.push(s("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, number(tick)));
    }
    for (const tick of ticks(...scale.xRange, Math.max(2, Math.floor(width / 130)), false)) {
      grid.push(
        s(
          "text",
          { x: scale.x(tick), y: HEIGHT - bottom + 16, "text-anchor": "middle" },
          short(tick),
        ),
      );
    }
    grid.push(
      s(
        "text",
        { x: width - right, y: HEIGHT - 2, "text-anchor": "end", class: "axis" },
        this.names.x,
      ),
    );
    const lines = this.series.map((one) => {
      const shown = thinned(one.points);
      const path = shown.map(
        ([x, y], i) => `${i ? "L" : "M"}${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}`,
      );
      const dots =
        shown.length <= 40
          ? shown.map(([x, y]) =>
              s("circle", { cx: scale.x(x), cy: scale.y(y), r: 2.6, fill: one.colour }),
            )
          : [];
      return [s("path", { d: path.join(""), stroke: one.colour, class: "line" }), dots];
    });
    this.cursor = s("line", {
      y1: top,
      y2: HEIGHT - bottom,
      class: "cursor",
      visibility: "hidden",
    });
    put(this.svg, grid, lines, this.cursor);
    this.scale = scale;
    this.#look(this.at);
  }

  #scales(width) {
    const xs = this.series.flatMap((one) => [
      one.points[0][0],
      one.points[one.points.length - 1][0],
    ]);
    const ys = this.series.flatMap((one) => extent(one.points.map((point) => point[1])));
    const xRange = spread(Math.min(...xs), Math.max(...xs), 0);
    const change = this.log ? Math.log : (v) => v;
    const yRange = spread(Math.min(...ys), Math.max(...ys), this.log ? 0 : 0.05);
    const [low, high] = yRange.map(change);
    const { left, right, top, bottom } = MARGIN;
    return {
      xRange,
      yRange,
      x: (v) => left + ((v - xRange[0]) / (xRange[1] - xRange[0])) * (width - left - right),
      y: (v) => HEIGHT - bottom - ((change(v) - low) / (high - low)) * (HEIGHT - top - bottom),
      back: (px) => xRange[0] + ((px - left) / (width - left - right)) * (xRange[1] - xRange[0]),
    };
  }

  #point(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect();
    this.#look(this.scale.back(event.clientX - box.left));
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || this.series.length === 0) return;
    event.preventDefault();
    const points = this.series[0].points;
    const now = this.at === null ? points.length - 1 : nearest(points, this.at);
    this.#look(
      points[
        Math.max(
          0,
          Math.min(points.length - 1, now + step * Math.max(1, Math.round(points.length / 100))),
        )
      ][0],
    );
  }

  #look(at) {
    this.at = at;
    if (!this.cursor) return;
    this.cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    const place = at === null ? (one) => one.points.length - 1 : (one) => nearest(one.points, at);
    if (at !== null) {
      const x = this.scale.x(this.series[0].points[nearest(this.series[0].points, at)][0]);
      this.cursor.setAttribute("x1", x);
      this.cursor.setAttribute("x2", x);
    }
    put(
      this.readout,
      this.series.map((one) => {
        const [x, y] = one.points[place(one)];
        return h(
          "span",
          {},
          h("i", { class: "swatch", style: { background: one.colour } }),
          `${one.name} `,
          h("b", {}, number(y)),
          ` at ${number(x)} ${this.names.x}`,
        );
      }),
    );
  }

  #fillTable() {
    if (!this.details.open) return;
    const rows = this.series.flatMap((one) =>
      thinned(one.points, 200).map(([x, y]) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, one.name),
          h("td", { class: "num" }, number(x)),
          h("td", { class: "num" }, number(y)),
        ),
      ),
    );
    put(
      this.table,
      h(
        "table",
        { class: "data" },
        h("caption", { class: "unseen" }, this.title),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["run", this.names.x, this.names.y].map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h("tbody", {}, rows),
      ),
    );
  }
}

/** At most `most` of the points, the first and the last among them. */
function thinned(points, most = DRAWN) {
  if (points.length <= most) return points;
  const step = (points.length - 1) / (most - 1);
  return Array.from({ length: most }, (_, i) => points[Math.round(i * step)]);
}

/** Round numbers between low and high. */
function ticks(low, high, about, log) {
  if (log && high / low > 30) {
    const powers = [];
    for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power += 1)
      powers.push(10 ** power);
    if (powers.length > 1) return powers;
  }
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((one) => one >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i += 1)
    found.push(Number((i * step).toPrecision(12)));
  return found;
}

function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? low : high;
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function spread(low, high, room) {
  if (low === high)
    return low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  return [low - room * (high - low), high + room * (high - low)];
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${number(value / 1e6)}M`;
  return size >= 1e4 ? `${number(value / 1e3)}k` : number(value);
}
