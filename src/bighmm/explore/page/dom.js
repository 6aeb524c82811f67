// Elements from data. Strings only ever become text nodes: a word of a vocabulary may be `<script>`.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; see `fill` for `props` and `children`. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Replaces all children of an element. */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** A number that keeps a unique id for labels. */
let counter = 0;
export function uniqueId(stem) {
  counter += 1;
  return `${stem}-${counter}`;
}

/** Calls `call` once, `wait` ms after the last of many calls. */
export function debounced(call, wait) {
  let timer = 0;
  const later = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), wait);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/** Offers text as a file to save. */
export function download(name, content, type = "application/json") {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// props: `on` {event: listener}, `style` {property: value, "--own": value}, `data` {name: value},
// anything else an attribute; true is an empty attribute, false and null none.
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value))
        element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    } else if (name === "data") {
      for (const [key, one] of Object.entries(value)) element.dataset[key] = one;
    } else if (name === "value") {
      element.value = value;
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}
