// The page Training: curves of one or several runs, which move while a run goes on.

import { format, settle } from "./address.js";
import { ask, capital } from "./asking.js";
import { h, put } from "./dom.js";
import { LineChart } from "./lines.js";
import { number, seconds, whole } from "./numbers.js";
import { absent, check, field, heading } from "./parts.js";

const POINTS = 1000;
const MOVING = 2000; // ms between questions about a run that goes on
const RESTING = 15000; // and about one that does not, and may be resumed
const COLOURS = ["--accent", "--warm", "--cool", "--error", "--soft"];
const AXES = { step: "steps", epoch: "epochs", tokens: "tokens", seconds: "seconds" };
const PARTS = ["step", "epoch", "loss", "lr", "tokens", "seconds", "tokens_per_second"];

export function trainingPage(main, address) {
  const charts = {
    loss: new LineChart({ title: "Loss", x: "steps", y: "nats a token" }),
    valid: new LineChart({
      title: "Validation perplexity",
      x: "steps",
      y: "perplexity",
      log: true,
    }),
    lr: new LineChart({ title: "Rate", x: "steps", y: "learning rate" }),
    tokens_per_second: new LineChart({
      title: "Tokens per second",
      x: "steps",
      y: "tokens a second",
    }),
  };
  const [problem, states, choice] = [
    h("div", { role: "alert" }),
    h("div", { role: "status" }),
    h("div", { class: "row" }),
  ];
  const axis = h(
    "select",
    {
      id: "axis",
      on: {
        change: () => {
          here();
          draw();
        },
      },
    },
    Object.entries(AXES).map(([key, name]) => h("option", { value: key }, name)),
  );
  const [ending, timers] = [new AbortController(), new Map()];
  let runs = [];
  put(
    main,
    heading("Training", "Read from the run's log; the curves move while it goes on."),
    h(
      "div",
      { class: "controls row end" },
      h("div", { class: "narrow" }, field("Over", axis)),
      h("fieldset", { class: "plain" }, h("legend", {}, "Runs"), choice),
    ),
    problem,
    states,
    h(
      "div",
      { class: "charts" },
      Object.values(charts).map((chart) => chart.element),
    ),
  );
  document.addEventListener("themechange", draw);
  start();
  return { update, close };

  function update({ query }) {
    axis.value = AXES[query.get("over")] ? query.get("over") : "step";
    const wanted = query.getAll("run").filter((name) => runs.some((run) => run.model === name));
    for (const run of runs) run.shown = wanted.length === 0 || wanted.includes(run.model);
    drawChoice();
    draw();
  }

  async function start() {
    try {
      const answer = await ask("runs", { signal: ending.signal });
      runs = answer.runs
        .filter((run) => run.has_log)
        .map((run, i) => ({
          ...run,
          colour: COLOURS[i % COLOURS.length],
          shown: true,
          log: null,
        }));
    } catch (error) {
      if (error.name !== "AbortError") complain(error);
      return;
    }
    update(address);
    if (runs.length === 0)
      put(states, absent("No log of a training is beside the models, so there are no curves."));
    for (const run of runs) follow(run);
  }

  async function follow(run) {
    let wait = RESTING;
    try {
      const after = run.log?.next ?? 0;
      const asked = `runs/${encodeURIComponent(run.model)}?after=${after}&points=${POINTS}`;
      const answer = await ask(asked, { signal: ending.signal });
      put(problem);
      if (answer.reset && after > 0) {
        run.log = null; // the run went back to a checkpoint; its log is read from the beginning
        wait = 0;
      } else {
        run.log = extended(run.log, answer);
        wait = answer.more ? 0 : answer.running ? MOVING : RESTING;
        draw();
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      complain(error);
    }
    timers.set(
      run,
      setTimeout(() => follow(run), wait),
    );
  }

  function complain(error) {
    put(problem, h("p", { class: "message error" }, capital(error.message)));
  }

  function drawChoice() {
    put(
      choice,
      runs.map((run) =>
        check(
          [h("i", { class: "swatch", style: { background: `var(${run.colour})` } }), run.name],
          run.shown,
          (on) => {
            run.shown = on;
            here();
            draw();
          },
        ),
      ),
    );
  }

  function here() {
    const some = runs.every((run) => run.shown)
      ? []
      : runs.filter((run) => run.shown).map((run) => run.model);
    settle(format("training", [], { over: axis.value === "step" ? "" : axis.value, run: some }));
  }

  function draw() {
    const over = axis.value || "step";
    const shown = runs.filter((run) => run.shown && run.log);
    const style = getComputedStyle(document.documentElement);
    const series = (points) =>
      shown.map((run) => ({
        name: run.name,
        colour: style.getPropertyValue(run.colour).trim(),
        points: points(run.log),
      }));
    for (const key of ["loss", "lr", "tokens_per_second"])
      charts[key].show(
        series(({ steps }) => steps[over].map((x, i) => [x, steps[key][i]])),
        AXES[over],
      );
    charts.valid.show(
      series(({ steps, checks }) =>
        checks.step.map((step, i) => [at(steps, step, over), checks.perplexity[i]]),
      ),
      AXES[over],
    );
    if (shown.length)
      put(
        states,
        h(
          "ul",
          { class: "plain" },
          shown.map((run) => h("li", {}, inWords(run))),
        ),
      );
  }

  function close() {
    ending.abort();
    document.removeEventListener("themechange", draw);
    for (const timer of timers.values()) clearTimeout(timer);
    for (const chart of Object.values(charts)) chart.close();
  }
}

/** The log with what is new in an answer. */
function extended(log, { next, running, total_steps: total, steps, checks }) {
  const join = (old, more, names) =>
    Object.fromEntries(
      names.map((name) => [name, [...(old?.[name] ?? []), ...(more[name] ?? [])]]),
    );
  return {
    next,
    running,
    total,
    steps: join(log?.steps, steps, PARTS),
    checks: join(log?.checks, checks, ["step", "perplexity", "best"]),
  };
}

function inWords({ name, log: { running, total, steps, checks } }) {
  const last = steps.step.length - 1;
  if (last < 0) return `${name}: no step yet.`;
  const best = checks.perplexity.length
    ? `, best validation perplexity ${number(Math.min(...checks.perplexity))}`
    : "";
  const of = total ? ` of ${whole(total)}` : "";
  return `${name}: ${running ? "training, " : ""}step ${whole(steps.step[last])}${of} after ${seconds(steps.seconds[last])}${best}.`;
}

/** The tokens, seconds or epoch of a step. */
function at(steps, step, over) {
  if (over === "step") return step;
  let i = steps.step.findIndex((one) => one >= step);
  if (i < 0) i = steps.step.length - 1;
  return steps[over][i] ?? step;
}
