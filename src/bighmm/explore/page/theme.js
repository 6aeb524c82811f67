// Sets the chosen theme before the first paint; without a choice the system's is used.
"use strict";
try {
  const chosen = localStorage.getItem("bighmm-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be closed to pages from files; then the system's theme stays.
}
