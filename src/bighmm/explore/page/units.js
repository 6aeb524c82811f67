// The words of a sentence as one sees them (between spaces), the tokens they are made of, and gaps.

const GAP = /(?<![\p{L}\p{N}_])_{3,}(?:\d+(?:-\d+)?)?(?![\p{L}\p{N}_])/u;
const MARKS = /^(?:▁|Ġ|##|Ċ)+/; // how tokenizers write the space before a piece

const UNKNOWN = /^[\p{L}\p{N}_]+(?:['’.-][\p{L}\p{N}_]+)*|^./u; // what a tokenizer takes for one word

/** Whether a text has gaps written in it. */
export function hasGap(text) {
  return GAP.test(text);
}

/** The words between spaces: [{text, tokens: []}]. */
export function split(text) {
  return text
    .split(/\s+/u)
    .filter(Boolean)
    .map((word) => ({ text: word, tokens: [] }));
}

/**
 * The same words with their tokens, or null if the tokens cannot be found in the text. An unknown token
 * gets `face`, what was typed for it.
 */
export function aligned(text, tokens) {
  const units = split(text);
  if (units.length === tokens.length)
    return units.map((unit, i) => ({ ...unit, tokens: [typed(tokens[i], unit.text)] }));
  let [at, rest] = [0, units[0]?.text ?? ""];
  for (const token of tokens) {
    if (rest === "" && at + 1 < units.length) {
      at += 1;
      rest = units[at].text;
    }
    const piece = token.unknown ? (UNKNOWN.exec(rest)?.[0] ?? "") : token.word.replace(MARKS, "");
    if (!rest.toLowerCase().startsWith(piece.toLowerCase())) return null;
    units[at].tokens.push(typed(token, piece));
    rest = rest.slice(piece.length);
  }
  return rest === "" && at === units.length - 1 ? units : null;
}

function typed(token, text) {
  return token.unknown ? { ...token, face: `${text} (unknown)` } : token;
}

/** The text with `___` in place of the gaps [{from, to, least, most}] over its words. */
export function gapped(units, gaps) {
  const words = [];
  for (let i = 0; i < units.length; i += 1) {
    const gap = gaps.find((one) => one.from === i);
    if (gap) {
      words.push(mark(gap));
      i = gap.to;
    } else {
      words.push(units[i].text);
    }
  }
  return words.join(" ");
}

/** `___`, `___3` or `___1-4`. */
export function mark({ least, most }) {
  if (least !== most) return `___${least}-${most}`;
  return least === 1 ? "___" : `___${least}`;
}

/** Gaps as they stand in an address: "2,4-6:1-5" is word 2, and words 4 to 6 as one to five words. */
export function writeGaps(gaps) {
  return gaps
    .map(({ from, to, least, most }) => {
      const where = from === to ? `${from}` : `${from}-${to}`;
      const usual = least === most && least === to - from + 1;
      return usual ? where : `${where}:${least === most ? least : `${least}-${most}`}`;
    })
    .join(",");
}

/** The gaps of an address; whatever is no gap in `count` words is left out. */
export function readGaps(text, count) {
  const gaps = [];
  for (const part of (text ?? "").split(",")) {
    const found = /^(\d+)(?:-(\d+))?(?::(\d+)(?:-(\d+))?)?$/.exec(part);
    if (!found) continue;
    const from = Number(found[1]);
    const to = Number(found[2] ?? from);
    const least = Number(found[3] ?? to - from + 1);
    const most = Number(found[4] ?? least);
    if (
      from > to ||
      to >= count ||
      least < 1 ||
      least > most ||
      gaps.some((gap) => from <= gap.to && gap.from <= to)
    )
      continue;
    gaps.push({ from, to, least, most });
  }
  return gaps.sort((a, b) => a.from - b.from);
}

/** Gaps with another one over the words from..to, which replaces those it overlaps. */
export function withGap(gaps, units, from, to) {
  const others = gaps.filter((gap) => gap.to < from || gap.from > to);
  const size = units
    .slice(from, to + 1)
    .reduce((sum, unit) => sum + Math.max(1, unit.tokens.length), 0);
  return [...others, { from, to, least: size, most: size }].sort((a, b) => a.from - b.from);
}
