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
  if (first === "blocks" && /^\d+$/.test(second ?? "") && !third)
    return block(data, Number(second), Refusal);
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
  if (!(id >= 0 && id < data.columns.tokens.length))
    throw new Refusal(
      `there is no state ${id}: states go from 0 to ${data.columns.tokens.length - 1}`,
    );
  const number = Math.floor(id / data.chunk);
  const rows = await chunk("states", number, `data/states-${number}.js`, Refusal);
  return rows[id - number * data.chunk];
}

async function block(data, id, Refusal) {
  const rows = await chunk("blocks", 0, "data/blocks.js", Refusal);
  if (id >= rows.length)
    throw new Refusal(`there is no block ${id}: blocks go from 0 to ${rows.length - 1}`);
  return rows[id];
}

function search(data, values) {
  const { columns, names } = data;
  const block = values.get("block");
  const named = (id) => names.names[id] ?? null;
  const fits = matching(data, values.get("query") ?? "");
  const matches = (id) => fits(id) && (!block || String(columns.block?.[id]) === block);
  const column =
    { share: columns.share, entropy: columns.entropy_bits, block: columns.block }[
      values.get("sort")
    ] ?? null;
  const [sort, sign] = [
    column ? values.get("sort") : "number",
    values.get("order") === "desc" ? -1 : 1,
  ];
  const found = columns.tokens
    .map((_, id) => id)
    .filter(matches)
    .sort((a, b) => sign * (column ? column[a] - column[b] : a - b) || a - b);
  const [page, size] = [Number(values.get("page")), Number(values.get("size"))];
  return {
    total: columns.tokens.length,
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
      words: columns.tokens[id].slice(0, data.shown).map((i) => ({ word: data.vocabulary[i] })),
    })),
  };
}

/** Whether a state matches a query, as the server decides it: by its number, its words or its name. */
function matching({ columns, names, vocabulary }, query) {
  const parts = query.toLowerCase().split(/\s+/u).filter(Boolean);
  const [only] = parts;
  if (parts.length === 1 && /^\d+$/.test(only) && Number(only) < columns.tokens.length)
    return (id) => id === Number(only);
  const small = parts.length ? vocabulary.map((word) => word.toLowerCase()) : [];
  const having = parts.map((part) => small.map((word) => word.includes(part)));
  const name = (id) => names.names[id]?.toLowerCase();
  return (id) =>
    having.every((has) => columns.tokens[id].some((token) => has[token])) ||
    (name(id) && parts.every((part) => name(id).includes(part)));
}

async function sentence(question, body, Refusal) {
  const rows = await chunk("sentences", 0, "data/sentences.js", Refusal);
  const text = body.text ?? body.texts?.[0];
  if (question !== "fill") {
    const row = rows.find((one) => one.text === text);
    if (!row?.[question]) throw absent(Refusal);
    return row[question];
  }
  const gap = rows.flatMap((one) => one.gaps ?? []).find((one) => one.text === text);
  if (!gap)
    throw new Refusal(
      "an exported site answers for one blanked word at a time; bighmm explore answers the rest",
    );
  if (gap.refused) throw new Refusal(gap.refused);
  return gap[body.kind];
}
