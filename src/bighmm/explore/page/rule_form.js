// The controls of a rule, and the rule as it stands in an address and in a question.

import { h, put } from "./dom.js";
import { check, field } from "./parts.js";

const TEXTS = ["starts", "ends", "regex", "text", "schema"];

export class RuleForm {
  /** changed() is called after every change. */
  constructor(changed) {
    this.changed = changed;
    this.must = new Phrases("Must contain", "must", () => {
      this.#drawOrder();
      changed();
    });
    this.mustNot = new Phrases("Must not contain", "not", changed);
    this.inOrder = false;
    this.order = h("div");
    const input = (name, more = {}) =>
      h("input", {
        id: `rule-${name}`,
        autocomplete: "off",
        spellcheck: false,
        autocapitalize: "off",
        ...more,
        on: { input: changed },
      });
    this.inputs = Object.fromEntries(
      TEXTS.map((name) => [
        name,
        name === "schema"
          ? h("textarea", {
              id: "rule-schema",
              rows: 4,
              spellcheck: false,
              class: "code",
              on: { input: changed },
            })
          : input(name),
      ]),
    );
    this.least = input("least", { type: "number", min: 0, max: 1000 });
    this.most = input("most", { type: "number", min: 0, max: 1000 });
    this.patterns = h(
      "details",
      {},
      h("summary", {}, "Patterns and JSON schema"),
      h(
        "div",
        { class: "stack" },
        field(
          "Pattern over words",
          this.inputs.regex,
          "A regular expression whose letters are words: the (old | new) .* file",
        ),
        field(
          "Regular expression over letters",
          this.inputs.text,
          "Of all that is written: [a-z ]+",
        ),
        field("JSON schema", this.inputs.schema, "All that is written is JSON of this schema."),
      ),
    );
    this.element = h(
      "fieldset",
      { class: "stack" },
      h("legend", {}, "The rule"),
      this.must.element,
      this.order,
      this.mustNot.element,
      h(
        "div",
        { class: "row even" },
        field("Starts with", this.inputs.starts),
        field("Ends with", this.inputs.ends),
      ),
      h(
        "div",
        { class: "row even" },
        field("Words at least", this.least),
        field("Words at most", this.most),
      ),
      this.patterns,
    );
    this.#drawOrder();
  }

  /** The rule as the server takes it; null where nothing is asked for. */
  value() {
    const rule = {};
    if (this.must.list.length) rule.must = this.must.list;
    if (this.mustNot.list.length) rule.must_not = this.mustNot.list;
    if (this.inOrder && this.must.list.length > 1) rule.in_order = true;
    for (const name of TEXTS)
      if (this.inputs[name].value.trim()) rule[name] = this.inputs[name].value.trim();
    const [least, most] = [this.least.value, this.most.value];
    const limit = (text) => (text === "" ? null : Number(text));
    if (least !== "" || most !== "") rule.words = [limit(least), limit(most)];
    return Object.keys(rule).length ? rule : null;
  }

  /** The rule as values of an address. */
  address() {
    const { must, must_not: not, in_order: order, words, ...others } = this.value() ?? {};
    const length = words && words.map((limit) => limit ?? "").join("..");
    return { must, not, "in-order": order, words: length, ...others };
  }

  /** Takes the rule of an address. */
  read(query) {
    this.must.set(query.getAll("must"));
    this.mustNot.set(query.getAll("not"));
    this.inOrder = query.has("in-order");
    for (const name of TEXTS) this.inputs[name].value = query.get(name) ?? "";
    const found = /^(\d*)\.\.(\d*)$/.exec(query.get("words") ?? "");
    [this.least.value, this.most.value] = found ? [found[1], found[2]] : ["", ""];
    this.patterns.open = ["regex", "text", "schema"].some((name) => this.inputs[name].value);
    this.#drawOrder();
  }

  /** Takes a phrase that was typed but not added. */
  settle() {
    this.must.add();
    this.mustNot.add();
  }

  #drawOrder() {
    put(
      this.order,
      this.must.list.length > 1 &&
        check("In this order", this.inOrder, (on) => {
          this.inOrder = on;
          this.changed();
        }),
    );
  }
}

/** A list of phrases: type one and press Enter. */
class Phrases {
  constructor(label, name, changed) {
    Object.assign(this, { list: [], changed });
    this.box = h("input", {
      id: `rule-${name}`,
      autocomplete: "off",
      spellcheck: false,
      autocapitalize: "off",
      on: {
        keydown: (event) => {
          if (event.key !== "Enter") return;
          event.preventDefault();
          this.add();
        },
      },
    });
    this.chips = h("ul", { class: "chips", "aria-label": label });
    this.element = h(
      "div",
      {},
      h(
        "div",
        { class: "row end tight" },
        field(label, this.box),
        h(
          "button",
          { type: "button", class: "quiet", id: `add-${name}`, on: { click: () => this.add() } },
          "Add",
        ),
      ),
      this.chips,
    );
  }

  add() {
    const phrase = this.box.value.trim();
    this.box.value = "";
    if (phrase === "" || this.list.includes(phrase)) return;
    this.set([...this.list, phrase]);
    this.changed();
  }

  set(list) {
    this.list = list.filter((phrase) => phrase.trim() !== "");
    put(
      this.chips,
      this.list.map((phrase) =>
        h(
          "li",
          {},
          h("span", {}, phrase),
          h(
            "button",
            {
              type: "button",
              "aria-label": `Remove ${phrase}`,
              title: "Remove",
              on: {
                click: () => {
                  this.set(this.list.filter((one) => one !== phrase));
                  this.box.focus();
                  this.changed();
                },
              },
            },
            "×",
          ),
        ),
      ),
    );
  }
}
