// Makes elements. Text only ever becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

// Puts new content into a place that the reader may be using: what has the focus is known by its
// data-key and gets it back.
export function swap(place, ...content) {
  const active = document.activeElement;
  const key = place.contains(active) ? active.dataset.key : null;
  place.replaceChildren(...content.flat(Infinity).filter(Boolean));
  if (!key || document.activeElement === active) return;
  [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus({ preventScroll: true });
}

export function say(text) {
  document.getElementById("live").textContent = text;
}

// Rows below labelled columns: [[label, show, class]], where "head" is what a row is about. On a
// narrow page each row becomes a card.
export function grid(label, columns, rows, attributes = () => ({}), kind = "") {
  const cell = ([name, show, type = ""], row) => (type === "head"
    ? h("th", { scope: "row" }, show(row))
    : h("td", { "data-label": name, class: type || null }, show(row)));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", { class: `cards ${kind}` },
      h("thead", {}, h("tr", {}, columns.map(([name, , type]) => h("th", { scope: "col", class: type === "number" ? type : null }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", attributes(row), columns.map((column) => cell(column, row)))))));
}

// "51–100 of 200 tables", and buttons to turn the page.
export function pager(key, word, offset, size, total, go) {
  const count = new Intl.NumberFormat("en").format;
  const last = Math.min(offset + size, total);
  const button = (text, to) => h("button", { type: "button", class: "button small", "data-key": `${key}-${text}`, disabled: to < 0 || to >= total, onclick: () => go(to) }, text);
  return h("div", { class: "pager" },
    h("span", { class: "muted number", "data-part": `${key}-count` }, total ? `${count(offset + 1)}–${count(last)} of ${count(total)} ${word}${total === 1 ? "" : "s"}` : `0 ${word}s`),
    total > size && [button("Previous", offset - size), button("Next", offset + size)]);
}

export function pick(label, options, chosen, change, key) {
  return h("label", { class: "field" }, h("span", {}, label),
    h("select", { "data-key": key, onchange: (event) => change(event.target.value) },
      options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}
