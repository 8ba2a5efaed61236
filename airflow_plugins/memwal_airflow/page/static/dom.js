// Makes elements. Text only ever becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

// Puts new content into a place that the reader may be using: what has the focus is known by its
// data-key and gets it back, and what was folded open stays open.
export function swap(place, ...content) {
  const open = new Set(
    [...place.querySelectorAll("details[open][data-key]")].map((one) => one.dataset.key),
  );
  const scrolled = new Map(
    [...place.querySelectorAll("[data-scroll]")].map((one) => [one.dataset.scroll, one.scrollLeft]),
  );
  keepFocus(place, () => place.replaceChildren(...content.flat(Infinity).filter(Boolean)));
  for (const one of place.querySelectorAll("details[data-key]")) {
    if (open.has(one.dataset.key)) one.open = true;
  }
  for (const one of place.querySelectorAll("[data-scroll]")) {
    one.scrollLeft = scrolled.get(one.dataset.scroll) || 0;
  }
}

// Makes these the children of a place. Those that stay are not touched, so that what is selected
// or found in them stays, too.
export function arrangeChildren(place, children) {
  const staying = new Set(children);
  keepFocus(place, () => {
    for (const one of [...place.children]) {
      if (!staying.has(one)) one.remove();
    }
    children.forEach((child, at) => {
      if (place.children[at] !== child) place.insertBefore(child, place.children[at] || null);
    });
  });
}

function keepFocus(place, change) {
  const active = document.activeElement;
  const key = active && place.contains(active) ? active.dataset.key : null;
  change();
  if (!key || document.activeElement === active) return;
  const again = [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  if (again) again.focus({ preventScroll: true });
}

export function say(text) {
  const live = document.getElementById("live");
  if (live.textContent !== text) live.textContent = text;
}
