// Numbers for people. Every number on the page has four significant digits; `exact` has them all.

/** A probability: 0.1234, 3.1e-7, 0. */
export function prob(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0 || value === 1) return String(value);
  return Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
}

/** A share as a percentage. */
export function share(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 %";
  return value < 1e-4 ? `${(100 * value).toExponential(1)} %` : `${(100 * value).toPrecision(3)} %`;
}

/** Any number, with four significant digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return whole(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return minus(value.toExponential(2));
  return size >= 1e4 ? whole(Math.round(value)) : minus(String(Number(value.toPrecision(4))));
}

/** A whole number with thin spaces between thousands. */
export function whole(value) {
  const digits = String(Math.abs(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return `${value < 0 ? "−" : ""}${digits}`;
}

/** A difference, always with its sign. */
export function signed(value, digits = 2) {
  if (!Number.isFinite(value)) return number(value);
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return `${value < 0 ? "−" : "+"}${text}`;
}

/** Bits with two decimals. */
export function bits(value) {
  return Number.isFinite(value) ? value.toFixed(2) : number(value);
}

/** −log2 p of a natural log-probability. */
export function surprisal(logProb) {
  return logProb === null || logProb === undefined ? Infinity : -logProb / Math.LN2;
}

/** Seconds as 1 h 02 min, 3 min 20 s, 12 s. */
export function seconds(value) {
  const all = Math.round(value);
  if (all >= 3600)
    return `${Math.floor(all / 3600)} h ${String(Math.floor((all % 3600) / 60)).padStart(2, "0")} min`;
  if (all >= 60) return `${Math.floor(all / 60)} min ${String(all % 60).padStart(2, "0")} s`;
  return `${all} s`;
}

function minus(text) {
  return text.replace(/^-/, "−");
}
