// Answers of an exported site, which has no server: they come from its data/*.js files, which are
// scripts because a page that was opened from a file may not read other files.

const waiting = new Map(); // "states 3": {promise, resolve}

/** Whether this is an exported site. */
export function isExport() {
  return Boolean(globalThis.bighmmStatic);
}

/** The names of the pages for which something was exported. */
export function storedPages() {
  const { sentences, model, curve } = globalThis.bighmmStatic;
  return [
    sentences.length > 0 && "sentence",
    model.has_states && "states",
    model.has_blocks && "blocks",
    curve && "training",
  ].filter(Boolean);
}

export function storedSentences() {
  return globalThis.bighmmStatic.sentences;
}

/** The answer to a question of `asking.ask`; throws a `Refusal` for what was not exported. */
export async function storedAnswer(path, body, Refusal) {
  const data = globalThis.bighmmStatic;
  const [name, query = ""] = path.split("?");
  const [first, second, third] = name.split("/");
  if (first === "runs") {
    if (second) return { ...data.curve, running: false };
    return {
      runs: [{ model: data.model.model, name: data.model.name, has_log: data.curve !== null }],
    };
  }
  if (first === "states")
    return second === undefined
      ? search(data, new URLSearchParams(query))
      : state(data, Number(second), Refusal);
  if (body) return sentence(first, body, Refusal);
  const whole = {
    models: data.models,
    model: data.model,
    names: data.names,
    blocks: second === "moves" ? data.moves : second ? null : data.blocks,
  }[first];
  if (!whole || third) throw absent(Refusal);
  return whole;
}

if (isExport()) {
  globalThis.bighmmChunk = (kind, number, rows) => waiting.get(`${kind} ${number}`)?.resolve(rows);
}

function absent(Refusal) {
  return new Refusal("this is not part of the exported site; bighmm explore answers it");
}

function chunk(kind, number, file, Refusal) {
  const key = `${kind} ${number}`;
  if (!waiting.has(key)) {
    const one = {};
    one.promise = new Promise((resolve, reject) => {
      one.resolve = resolve;
      const script = document.createElement("script");
      script.src = file;
      script.addEventListener("error", () =>
        reject(new Refusal(`the file ${file} of the exported site is missing`)),
      );
      document.head.append(script);
    });
    waiting.set(key, one);
  }
  return waiting.get(key).promise;
}

async function state(data, id, Refusal) {
  if (!(id >= 0 && id < data.columns.words.length))
    throw new Refusal(
      `there is no state ${id}: states go from 0 to ${data.columns.words.length - 1}`,
    );
  const number = Math.floor(id / data.chunk);
  const rows = await chunk("states", number, `data/states-${number}.js`, Refusal);
  return rows[id - number * data.chunk];
}

function search(data, values) {
  const { columns, names } = data;
  const words = (values.get("query") ?? "").trim().split(/\s+/u).filter(Boolean);
  const block = values.get("block");
  const named = (id) => names.names[id] ?? null;
  const matches = (id) =>
    words.every(
      (word) =>
        String(id) === word ||
        named(id)?.includes(word) ||
        columns.words[id].some((one) => one.includes(word)),
    ) &&
    (!block || String(columns.block?.[id]) === block);
  const column =
    { share: columns.share, entropy: columns.entropy_bits, block: columns.block }[
      values.get("sort")
    ] ?? null;
  const [sort, sign] = [
    column ? values.get("sort") : "number",
    values.get("order") === "desc" ? -1 : 1,
  ];
  const found = columns.words
    .map((_, id) => id)
    .filter(matches)
    .sort((a, b) => sign * (column ? column[a] - column[b] : a - b) || a - b);
  const [page, size] = [Number(values.get("page")), Number(values.get("size"))];
  return {
    total: columns.words.length,
    matching: found.length,
    page,
    size,
    sort,
    order: values.get("order"),
    states: found.slice(page * size, (page + 1) * size).map((id) => ({
      state: id,
      name: named(id),
      share: columns.share?.[id] ?? null,
      entropy_bits: columns.entropy_bits[id],
      block: columns.block?.[id] ?? null,
      words: columns.words[id].map((word) => ({ word })),
    })),
  };
}

async function sentence(question, body, Refusal) {
  const rows = await chunk("sentences", 0, "data/sentences.js", Refusal);
  const text = body.text ?? body.texts?.[0];
  if (question !== "fill") {
    const row = rows.find((one) => one.text === text);
    if (!row?.[question]) throw absent(Refusal);
    return row[question];
  }
  const row = rows.find((one) => one.gaps?.some((gap) => gap?.text === text));
  const probs = row?.gaps.find((gap) => gap?.text === text);
  if (!probs)
    throw new Refusal(
      "an exported site answers for one blanked word at a time; bighmm explore answers the rest",
    );
  return body.kind === "probs"
    ? { ...probs, gaps: probs.gaps.map((gap) => ({ ...gap, words: gap.words.slice(0, body.n) })) }
    : oneGap(row, probs, body.n);
}

/** The best fillings of one gap of one word are its likeliest words. */
function oneGap(row, probs, n) {
  const [place] = probs.gaps;
  const stood = row.gaps.indexOf(probs);
  const word = row.score.lines[0].words[stood]?.word;
  const mine = place.words.find((one) => one.word === word);
  const known = mine ? row.score.lines[0].log_prob - mine.log_prob_filling : null;
  return {
    exact: true,
    fillings: place.words.slice(0, n).map((one) => ({
      text: probs.text.replace("___", () => one.word),
      words: [[one.word]],
      prob: one.prob,
      log_prob_filling: one.log_prob_filling,
      log_prob: known === null ? null : known + one.log_prob_filling,
    })),
  };
}
