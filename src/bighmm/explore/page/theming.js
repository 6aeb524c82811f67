// Light and dark: the system's choice until a person chooses.

import { h } from "./dom.js";

const KEY = "bighmm-theme";

/** A button that switches between light and dark. */
export function themeSwitch() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = h("button", {
    type: "button",
    class: "quiet",
    id: "theme",
    on: { click: toggle },
  });
  system.addEventListener("change", changed);
  changed();
  return button;

  function isDark() {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : system.matches;
  }

  function toggle() {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // Not kept for the next visit, then.
    }
    changed();
  }

  function changed() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    document.dispatchEvent(new Event("themechange"));
  }
}
