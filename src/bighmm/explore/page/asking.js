// Questions to the server. A later question cancels the earlier one of the same asker, so that a late
// answer never replaces a newer one.

import { h, put } from "./dom.js";
import { isExport, storedAnswer } from "./stored.js";

const API = "api/v1/";
const PATIENCE = 250; // ms before "Working" is shown
const WAIT = 0.3; // seconds after which an answer becomes a job with progress

let chosen = null; // the model that questions are for; null is the server's first

/** What the server (or the network) said instead of an answer; `message` is a sentence. */
export class Refusal extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Asks all following questions of this model. */
export function useModel(name) {
  chosen = name;
}

/**
 * The answer to one question. `body` is sent by POST; without it the question is a GET.
 * signal cancels it, progress(fraction) is called while a slow one is being answered.
 * Throws `Refusal`, or AbortError.
 */
export async function ask(
  path,
  { body = null, method = body === null ? "GET" : "POST", signal, progress } = {},
) {
  if (isExport()) return storedAnswer(path, body, Refusal);
  const slow = progress ? `&wait=${WAIT}` : "";
  const mark = path.includes("?") ? "&" : "?";
  const asked =
    path +
    (chosen || slow
      ? mark +
        [chosen && `model=${encodeURIComponent(chosen)}`, slow.slice(1)].filter(Boolean).join("&")
      : "");
  const { status, answer } = await send(asked, method, body, signal);
  return status === 202 ? finished(answer.job, signal, progress) : answer;
}

/** Asks again and again until a job is done; a cancelled question cancels its job. */
async function finished(job, signal, progress) {
  try {
    let now = job;
    while (now.state === "queued" || now.state === "running") {
      progress(now.fraction);
      now = (await send(`jobs/${encodeURIComponent(job.id)}?wait=1`, "GET", null, signal)).answer
        .job;
    }
    if (now.state === "done") return now.answer;
    throw new Refusal(now.error?.message ?? "the question was cancelled", now.error?.status ?? 0);
  } catch (error) {
    if (error.name === "AbortError")
      send(`jobs/${encodeURIComponent(job.id)}`, "DELETE", null).catch(() => {});
    throw error;
  }
}

async function send(path, method, body, signal) {
  let response;
  try {
    response = await fetch(API + path, {
      method,
      signal,
      headers: body === null ? {} : { "Content-Type": "application/json" },
      body: body === null ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("the server does not answer; is it still running?");
  }
  let answer;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(
      `the server's answer cannot be read (status ${response.status})`,
      response.status,
    );
  }
  if (!response.ok) throw new Refusal(sentence(answer, response.status), response.status);
  return { status: response.status, answer };
}

/** One place on a page that asks: shows that work goes on, a way to cancel, and errors. */
export class Asker {
  constructor(label = "Working") {
    this.label = label;
    this.current = null;
    this.text = h("span");
    this.meter = h("progress", { "aria-label": "Progress", hidden: true });
    this.button = h(
      "button",
      { type: "button", class: "quiet", on: { click: () => this.cancel() } },
      "Cancel",
    );
    this.work = h("div", { class: "working", hidden: true }, this.text, this.meter, this.button);
    this.good = h("span", { class: "soft" });
    this.problem = h("div", { role: "alert" });
    this.element = h(
      "div",
      { class: "asker" },
      h("div", { role: "status" }, this.work, this.good),
      this.problem,
    );
  }

  /**
   * Runs `question(signal, progress)`, then `show(answer)` unless another question came meanwhile;
   * `clear()` takes away an earlier answer if there is none to this question.
   */
  async ask(question, show, clear = () => {}) {
    this.current?.abort();
    const mine = new AbortController();
    this.current = mine;
    const patience = setTimeout(() => this.current === mine && this.#busy(null), PATIENCE);
    const progress = (share) => this.current === mine && this.#busy(share ?? null);
    try {
      const answer = await question(mine.signal, progress);
      if (this.current !== mine) return;
      this.#idle();
      show(answer);
    } catch (error) {
      if (this.current !== mine) return;
      this.#idle();
      if (error.name === "AbortError") return;
      this.complain(error);
      clear();
    } finally {
      clearTimeout(patience);
      if (this.current === mine) this.current = null;
    }
  }

  /** Shows an error in place of an answer. */
  complain(error) {
    if (!(error instanceof Refusal)) console.error(error);
    put(this.problem, h("p", { class: "message error" }, capital(error.message)));
  }

  /** Shows a word of success. */
  say(words) {
    put(this.good, words);
  }

  /** Ends the question; what was shown stays. */
  cancel() {
    const had = this.current;
    this.current = null;
    this.#idle();
    had?.abort();
  }

  #busy(share) {
    this.text.textContent = `${this.label} …`;
    this.work.hidden = false;
    this.meter.hidden = share === null;
    if (share !== null) this.meter.value = share;
  }

  #idle() {
    this.work.hidden = true;
    this.meter.hidden = true;
    put(this.good);
    put(this.problem);
  }
}

/** A sentence with a capital letter and its full stop. */
export function capital(text) {
  const one = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(one) ? one : `${one}.`;
}

function sentence(answer, status) {
  const said = answer?.error?.message;
  return typeof said === "string" ? said : `the server refused the question (status ${status})`;
}
