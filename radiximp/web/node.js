// What one node is, why it would or would not go next, and what can be done with it.

import { ago, el, percent, refill, short, whole } from "./dom.js";

const RANK_NAMES = ["pin", "promise of reuse", "last use", "use"];

function tiersOf(node) {
  if (node.is_on_device) return node.is_on_host ? "device, with a copy on the host" : "device";
  return node.is_on_host ? "host only" : "none";
}

/** Sentences, the one that decides first. */
export function reasons(node) {
  const said = [];
  const order = node.order.device ?? node.order.host;
  if (node.state === "in_use") said.push("It does not go now: a running request holds it.");
  if (node.state === "inner") said.push(`It does not go now: ${node.children === 1 ? "a node continues" : `${node.children} nodes continue`} it, and what continues goes first.`);
  if (node.state === "host_only") said.push("The device holds nothing of it; it can only leave the host.");
  if (node.state === "leaf" && node.next_victim?.node === node.node) said.push("It goes next: of all leaves it promises least reuse for the time it would be held.");
  else if (order) {
    const where = node.order.device ? "device" : "host";
    said.push(`${order.is_exact ? "" : "About "}${whole(order.before)} of ${whole(order.leaves)} leaves on the ${where} go before it.`);
  }
  if (node.is_pinned) said.push("It is pinned: it goes after all that is not.");
  if (node.goes_first) said.push("It was told to go first, until it is used again.");
  return said;
}

function rankTable(node) {
  const next = node.next_victim;
  const names = node.rank.length === RANK_NAMES.length ? RANK_NAMES : node.rank.map((_, index) => `part ${index + 1}`);
  const number = (value) => (value === null ? "∞" : Number.isInteger(value) ? String(value) : value.toPrecision(6));
  const cells = (rank) => rank.map((part) => el("td", { className: "number" }, number(part)));
  const head = el("tr", {}, el("th", { scope: "col" }, "rank key"), ...names.map((name) => el("th", { className: "number", scope: "col" }, name)));
  const rows = [el("tr", {}, el("th", { scope: "row" }, "this"), ...cells(node.rank))];
  if (next && next.node !== node.node) rows.push(el("tr", {}, el("th", { scope: "row" }, `next: ${next.node}`), ...cells(next.rank)));
  return el("div", { className: "wide", tabIndex: 0, role: "group", ariaLabel: "Rank key" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

/** actions: {pin(ttl), unpin(pinId), text(), zoom()}; may: what this caller may do. */
export function showNode(place, node, { may, actions, text }) {
  const chance = node.chance ? ` ${percent(node.chance["60_s"])} within a minute, ${percent(node.chance["3600_s"])} within an hour` : "";
  const facts = [
    ["node", String(node.node)],
    ["tokens", `${whole(node.tokens)}, at the end of a prefix of ${whole(node.prefix_tokens)}`],
    ["tier", tiersOf(node)],
    ["importance", `${node.importance.toFixed(2)} of the average token's attention`],
    ["requests", whole(node.queries)],
    ["sessions", whole(node.sessions)],
    ["last use", `${ago(node.age_s)} ago`],
    ...(chance ? [["used again", chance.trim()]] : []),
  ];
  const list = el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const why = reasons(node).map((sentence, index) => el("p", { className: index ? "note" : "why" }, sentence));
  refill(place, list, el("h3", {}, "Would it go next?"), ...why, rankTable(node), tools(node, may, actions), ...preview(text));
}

function tools(node, may, actions) {
  const ttl = el("input", { id: "pin-ttl", type: "number", min: 1, step: 1, value: 3600 });
  const pin = el("button", { type: "button", id: "pin", disabled: !may.change || !node.is_on_device, onclick: () => actions.pin(Number(ttl.value) || null) }, "Pin its prompt");
  const parts = [
    el("button", { type: "button", id: "zoom", onclick: actions.zoom }, "Zoom in"),
    el("button", { type: "button", id: "text", disabled: !may.read_text, onclick: actions.text }, "Show its text"),
    pin, el("label", {}, "for ", ttl, " s after its last use"),
    ...node.pin_ids.filter((id) => id !== "hint").map((id) =>
      el("button", { type: "button", className: "unpin", disabled: !may.change, onclick: () => actions.unpin(id) }, `Unpin ${id.slice(0, 8)}`)),
  ];
  const notes = [];
  if (!may.change) notes.push(el("p", { className: "note" }, "Read only: pins and pre-warm jobs need the server's admin key here."));
  else if (!may.read_text) notes.push(el("p", { className: "note" }, "Text of prompts needs a server with --admin-api-key, and that key."));
  return el("div", {}, el("div", { className: "tools" }, ...parts), ...notes);
}

function preview(text) {
  if (text === undefined) return [];
  return [el("h3", {}, "Its first words"), el("blockquote", { tabIndex: 0 }, text ?? "This server has no tokenizer.")];
}

/** One line for the status under the tree. */
export function inShort(columns, row) {
  const importance = columns.importance[row];
  const nodes = columns.nodes[row] > 1 ? `${columns.nodes[row]} nodes in a row, ` : "";
  return `Node ${columns.id[row]}: ${nodes}${short(columns.tokens[row])} tokens, ${short(columns.subtree_tokens[row])} with what follows, importance ${importance === null ? "not observed" : importance.toFixed(2)}, ${columns.queries[row]} requests, last use ${ago(columns.age_s[row])} ago`;
}
