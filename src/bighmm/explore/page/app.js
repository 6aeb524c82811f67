// The frame: navigation, theme, the choice of a model, and the page that the address names.

import { lastOf, parse, setModel, visit } from "./address.js";
import { ask, capital, useModel } from "./asking.js";
import { h, put } from "./dom.js";
import { whole } from "./numbers.js";
import { isExport, storedPages } from "./stored.js";
import { themeSwitch } from "./theming.js";
import { blocksPage } from "./blocks.js";
import { comparePage } from "./compare.js";
import { sentencePage } from "./sentence.js";
import { statePage } from "./state.js";
import { statesPage } from "./states.js";
import { trainingPage } from "./training.js";
import { writePage } from "./write.js";

// A page is a function (main, address, about) that draws and returns {close, title, update?}.
const PAGES = [
  { name: "sentence", title: "Sentence", make: sentencePage },
  {
    name: "states",
    title: "States",
    make: (main, address, about) =>
      (address.parts.length ? statePage : statesPage)(main, address, about),
  },
  { name: "blocks", title: "Blocks", make: blocksPage },
  { name: "write", title: "Write", make: writePage },
  { name: "training", title: "Training", make: trainingPage },
  { name: "compare", title: "Compare", make: comparePage },
];

const main = document.getElementById("main");
let open = null; // {key, page} that is shown
let about = null; // the facts of the model that is asked
let models = [];

start();

async function start() {
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  try {
    models = (await ask("models")).models;
  } catch (error) {
    put(document.getElementById("tools"), themeSwitch());
    put(
      main,
      h("h1", { tabindex: -1 }, "No answer"),
      h("p", { class: "message error", role: "alert" }, capital(error.message)),
    );
    return;
  }
  put(document.getElementById("tools"), models.length > 1 && modelChoice(), themeSwitch());
  addEventListener("hashchange", show);
  show(null);
}

async function show(event) {
  const { hash } = location;
  const address = parse(hash);
  const wanted = address.query.get("model");
  const model = models.find((one) => one.model === wanted)?.model ?? models[0].model;
  if (about?.model !== model) {
    useModel(models.length > 1 ? model : null);
    const facts = await ask("model");
    if (location.hash !== hash) return; // another address came meanwhile, and is being shown
    about = { ...facts, models };
    open?.page.close?.();
    open = null;
    describe();
  }
  const page = shown().find((one) => one.name === address.page) ?? shown()[0];
  const key = [page.name, ...address.parts].join("/");
  visit();
  navigation(page);
  if (open?.key === key && open.page.update) {
    open.page.update(address);
  } else {
    open?.page.close?.();
    put(main);
    open = { key, page: page.make(main, address, about) };
    if (event) main.querySelector("h1")?.focus();
    scrollTo(0, 0);
  }
  document.title = `${open.page.title ?? page.title} · ${about.name} · bighmm`;
}

function describe() {
  const facts = [
    about.name,
    about.states && `${whole(about.states)} states`,
    about.blocks && `${whole(about.blocks)} blocks`,
    about.vocabulary && `${whole(about.vocabulary)} words`,
  ];
  put(document.getElementById("about"), facts.filter(Boolean).join(" · "));
  setModel(about.model === models[0].model ? null : about.model);
  const choice = document.getElementById("model");
  if (choice) choice.value = about.model;
}

function modelChoice() {
  const change = (event) => {
    const [path, query] = location.hash.split("?");
    const values = new URLSearchParams(query);
    values.set("model", event.target.value);
    location.hash = `${path || "#/"}?${values}`;
  };
  return h(
    "label",
    { class: "model" },
    h("span", { class: "unseen" }, "Model"),
    h(
      "select",
      { id: "model", on: { change } },
      models.map((one) => h("option", { value: one.model }, one.name)),
    ),
  );
}

/** The pages that there is something to show on. */
function shown() {
  return isExport() ? PAGES.filter((page) => storedPages().includes(page.name)) : PAGES;
}

/** Links to the pages as they were left. A page changes its own address, so links are made when used. */
function navigation(current) {
  const renew = (event, page) => {
    event.currentTarget.href = lastOf(page.name);
  };
  put(
    document.getElementById("pages"),
    shown().map((page) =>
      h(
        "li",
        {},
        h(
          "a",
          {
            href: lastOf(page.name),
            "aria-current": page === current ? "page" : null,
            on: {
              focus: (event) => renew(event, page),
              pointerenter: (event) => renew(event, page),
            },
          },
          page.title,
        ),
      ),
    ),
  );
}
