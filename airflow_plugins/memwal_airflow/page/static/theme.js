// Light or dark, before the first paint: as the Airflow page around us shows it, else as Airflow
// remembers it, else as the system prefers (which the style sheet does by itself).
(function () {
  "use strict";
  const root = document.documentElement;

  function around() {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null; // framed by another site: not ours to look at
    }
  }

  function remembered() {
    try {
      return window.localStorage.getItem("theme");
    } catch {
      return null;
    }
  }

  function apply() {
    const frame = around();
    let theme = remembered();
    if (frame && frame.classList.contains("dark")) theme = "dark";
    else if (frame && frame.classList.contains("light")) theme = "light";
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
    else delete root.dataset.theme;
    window.dispatchEvent(new Event("themechange"));
  }

  apply();
  window.addEventListener("storage", apply);
  const frame = around();
  if (frame) {
    new MutationObserver(apply).observe(frame, { attributes: true, attributeFilter: ["class"] });
  }
})();
