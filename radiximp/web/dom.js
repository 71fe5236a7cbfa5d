// Elements and numbers as text. Nothing is ever parsed as HTML.

export const byId = (id) => document.getElementById(id);

/** An element; properties by name, `on...` as listeners, children as nodes or text. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Put new children into a place; what had the focus has it again, if there still is such a one. */
export function refill(place, ...children) {
  const nameOf = (element) => element.ariaLabel ?? element.textContent;
  const focused = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  place.replaceChildren(...children);
  if (focused === null) return;
  const again = [...place.querySelectorAll("button, [tabindex]")].find((element) => nameOf(element) === focused);
  again?.focus({ preventScroll: true });
}

/** The same in SVG: attributes only. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A table, or `empty` where there are no rows; cells are text, numbers (to the right) or nodes. */
export function table(heads, rows, empty) {
  if (!rows.length) return el("p", { className: "note" }, empty);
  const isNumber = (index) => typeof rows[0][index] === "number" || /^-?[\d.,]+[kM%]?( s)?$/.test(rows[0][index]);
  const cell = (tag, index, content) =>
    el(tag, { className: isNumber(index) ? "number" : "", ...(tag === "th" ? { scope: "col" } : {}) }, content);
  const head = el("tr", {}, ...heads.map((text, index) => cell("th", index, text)));
  const body = rows.map((row) =>
    el("tr", {}, ...row.map((content, index) => cell("td", index, content instanceof Node ? content : String(content)))),
  );
  return el(
    "div",
    { className: "wide", tabIndex: 0, role: "group", ariaLabel: "table" },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)),
  );
}

export const whole = (number) => Math.round(number).toLocaleString("en");

export function short(number) {
  if (number < 1e4) return whole(number);
  return number < 1e7 ? `${(number / 1e3).toPrecision(3)}k` : `${(number / 1e6).toPrecision(3)}M`;
}

export const percent = (share) => (share === null || !Number.isFinite(share) ? "–" : `${(100 * share).toFixed(1)}%`);

export function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, seconds).toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
