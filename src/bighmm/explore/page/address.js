// Addresses are hashes, `#/write?prefix=the&must=file`, so that they also work in an exported site.

/** {page, parts, query}: the page's name, what follows it in the path, and its parameters. */
export function parse(hash) {
  const [path, query = ""] = splitOnce(hash.replace(/^#\/?/, ""), "?");
  const [page, ...parts] = path.split("/").filter(Boolean).map(decode);
  return { page: page ?? "", parts, query: new URLSearchParams(query) };
}

let model = null; // that every address names; null for the first, which none names

/** All addresses from now on are of this model. */
export function setModel(name) {
  model = name;
}

/** The hash of a page; empty values are left out, lists are repeated. */
export function format(page, parts = [], values = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ model, ...values })) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined && one !== false) {
        query.append(name, one === true ? "1" : String(one));
      }
    }
  }
  const path = [page, ...parts].map((part) => encodeURIComponent(part)).join("/");
  const tail = query.toString();
  return `#/${path}${tail ? `?${tail}` : ""}`;
}

/** Changes the address without a new entry in the history and without loading the page again. */
export function settle(hash) {
  if (location.hash !== hash) history.replaceState(null, "", hash);
  visit();
}

const visited = new Map(); // page: the parameters of its last address

/** Keeps the address, so that `lastOf` leads back to it; one below a page, such as a state's, is not kept. */
export function visit() {
  const { page, parts, query } = parse(location.hash);
  if (parts.length === 0) visited.set(page, query);
}

/** The last address of a page, for the model that is asked now. */
export function lastOf(page) {
  const query = new URLSearchParams(visited.get(page));
  query.delete("model");
  if (model !== null) query.set("model", model);
  const tail = query.toString();
  return `#/${page}${tail ? `?${tail}` : ""}`;
}

function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
