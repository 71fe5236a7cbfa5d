// Two small line charts, as SVG: shares over time, and the what-if curve.

import { el, percent, short, svg } from "./dom.js";

const HEIGHT = 190, LEFT = 40, RIGHT = 12, TOP = 10, BOTTOM = 24;
const MOST_POINTS = 900;

const widthOf = (figure) => Math.max(figure.clientWidth, 200);
const across = (width) => (share) => LEFT + share * (width - LEFT - RIGHT);
const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);

function frame(label, most, width) {
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    chart.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(share), y2: y(share) }));
    chart.append(svg("text", { x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, `${Math.round(100 * share * most)}%`));
  }
  return chart;
}

function caption(entries) {
  const parts = entries.flatMap(([name, shade, text]) => [
    svg("svg", { viewBox: "0 0 12 12", class: "key", "aria-hidden": "true" }, svg("rect", { class: shade, width: 12, height: 12 })),
    `${name} ${text}  `,
  ]);
  return el("figcaption", { className: "key-line" }, ...parts);
}

/** Keeps what the counters said at each poll, and shows the shares of the prompt tokens between two of them. */
export class OverTime {
  constructor(figure) {
    this.figure = figure;
    this.last = null;
    this.points = []; // {t, device, host, storage, regret}; t in seconds
  }

  note(rank) {
    const now = {
      t: performance.now() / 1000, asked: rank.prompt_tokens.user, regret: rank.regret_tokens, ...rank.hit_tokens.user,
    };
    const before = this.last;
    if (before === null || now.asked < before.asked) this.points = [];
    else if (now.asked > before.asked) {
      const share = (name) => Math.min((now[name] - before[name]) / (now.asked - before.asked), 1);
      this.points.push({ t: now.t, device: share("device"), host: share("host"), storage: share("storage"), regret: share("regret") });
      this.points.splice(0, this.points.length - MOST_POINTS);
    }
    // Requests that take long end in none of some polls: the next point covers them all.
    if (before === null || now.asked !== before.asked) this.last = now;
    this.show();
  }

  show() {
    const { points } = this;
    if (points.length < 2) {
      const text = "Shares of prompt tokens between two looks, from the second request on that ends while this page is open.";
      this.figure.replaceChildren(el("p", { className: "note" }, text));
      return;
    }
    const first = points[0].t, span = Math.max(points.at(-1).t - first, 1), latest = points.at(-1);
    const has = (tier) => points.some((point) => point[tier] > 0);
    const lines = [
      ["found", "c1", (point) => point.device + point.host + point.storage],
      ...(has("host") || has("storage") ? [["on the device", "c2", (point) => point.device]] : []),
      ...(has("storage") ? [["with the host", "c3", (point) => point.device + point.host]] : []),
      ["regret", "c4", (point) => point.regret],
    ];
    const shown = lines.map(([name, shade, of]) => [name, shade, percent(of(latest))]);
    const width = widthOf(this.figure), x = across(width);
    const label = `Hit rate and regret over ${Math.round(span)} seconds; now ${shown.map(([name, , share]) => `${name} ${share}`).join(", ")}`;
    const chart = frame(label, 1, width);
    for (const [, shade, of] of lines) {
      const path = points.map((point) => `${x((point.t - first) / span).toFixed(1)},${y(of(point)).toFixed(1)}`);
      chart.append(svg("polyline", { class: `line ${shade}`, points: path.join(" ") }));
    }
    chart.append(svg("text", { x: LEFT, y: HEIGHT - 6 }, `${Math.round(span)} s ago`));
    chart.append(svg("text", { x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, "now"));
    this.figure.replaceChildren(chart, caption(shown));
  }
}

/** What lru would hit at other sizes, and what this server did. */
export function showWhatIf(figure, rank) {
  const sizes = rank.what_if.sizes.filter((size) => size.hit_rate !== null);
  if (!sizes.length) {
    const why = rank.what_if.rate ? "No requests to tell from yet." : "Switched off (what_if_rate is 0).";
    figure.replaceChildren(el("p", { className: "note" }, why));
    return;
  }
  const most = Math.max(...sizes.map((size) => size.hit_rate)) > 0.5 ? 1 : 0.5;
  const width = widthOf(figure), x = across(width);
  const at = (index) => x(sizes.length === 1 ? 0.5 : index / (sizes.length - 1));
  const told = sizes.map((size) => `${size.scale} times ${percent(size.hit_rate)}`).join(", ");
  const what = sizes[0].host_tokens ? "host memory" : "device memory";
  const chart = frame(`Hit rate of lru by ${what}: ${told}`, most, width);
  const points = sizes.map((size, index) => `${at(index).toFixed(1)},${y(size.hit_rate / most).toFixed(1)}`);
  chart.append(svg("polyline", { class: "line c1", points: points.join(" ") }));
  sizes.forEach((size, index) => {
    const error = Math.min(2 * size.standard_error, 1);
    const [low, high] = [Math.max(size.hit_rate - error, 0), Math.min(size.hit_rate + error, most)];
    chart.append(svg("line", { class: "c1", x1: at(index), x2: at(index), y1: y(low / most), y2: y(high / most) }));
    chart.append(svg("circle", { class: "dot c1", cx: at(index), cy: y(size.hit_rate / most), r: 4 }));
    const tokens = size.host_tokens || size.device_tokens, anchor = ["start", "middle", "middle", "end"][index] ?? "middle";
    chart.append(svg("text", { x: at(index), y: HEIGHT - 6, "text-anchor": anchor }, width < 420 ? `${size.scale}×` : `${size.scale}× ${short(tokens)}`));
  });
  const note = `Prompt tokens that lru would find with so much ${what}, ± 2 standard errors; ${short(rank.what_if.samples)} samples. Read it for its slope.`;
  figure.replaceChildren(chart, el("figcaption", {}, note));
}
