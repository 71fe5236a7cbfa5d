// Brings the parts together: what is asked of the server, how often, and what its answers change.

import { ApiError, ask, call, key, Repeating, setKey } from "./api.js";
import { OverTime, showWhatIf } from "./charts.js";
import { byId, el, svg, whole } from "./dom.js";
import { showHotspots, showJobs, showPins, showTiles, promptsOf } from "./lists.js";
import { inShort, showNode } from "./node.js";
import { COLOURS } from "./rows.js";
import { TreeView } from "./tree.js";

const STATS_S = 3, LISTS_S = 10, JOBS_S = 3;
const state = { rank: 0, may: { change: false, read_text: false }, etag: null, trees: [], node: null, text: undefined, hasText: false, isLetIn: false };

const view = new TreeView(byId("tree"), { onSelect: (id) => selectNode(id), onZoom: showCrumbs });
const overTime = new OverTime(byId("time"));

// ---- what is said of the server ----

function say(text, isBad = false) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("bad", isBad);
}

/** Runs a call; what goes wrong is said, and a wrong key is asked for. Returns undefined then. */
async function attempt(work, place = null) {
  const used = key();
  try {
    return await work();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401 && used === key()) {
      state.isLetIn = false; // nothing more is asked until there is another key
      askForKey("The server did not accept the key.");
    }
    const text = error instanceof ApiError ? `${error.status}: ${error.message}` : error.message;
    if (place) place.textContent = text;
    else say(text, true);
    return undefined;
  }
}

const ofRank = (ranks) => ranks.find((rank) => rank.dp_rank === state.rank) ?? ranks[0];

// ---- polls ----

const repeating = (work) => new Repeating(work, () => state.isLetIn);

const stats = repeating(async () => {
  const answer = await attempt(() => call("GET", "stats"));
  if (!answer) return 2 * STATS_S;
  const rank = ofRank(answer.ranks);
  say(`${rank.policy} on ${rank.tree_core}, radiximp ${rank.version}, ${whole(rank.requests.user)} requests`);
  showRanks(answer.ranks.map((one) => one.dp_rank));
  showTiles(byId("tiles"), rank);
  overTime.note(rank);
  showWhatIf(byId("what-if"), rank);
  return STATS_S;
});

const trees = repeating(async () => {
  const headers = state.etag ? { "If-None-Match": state.etag } : {};
  const answer = await attempt(() => ask("GET", "tree", { headers }));
  if (!answer) return 5;
  if (answer.content) {
    Object.assign(state, { etag: answer.etag, may: answer.content.may, trees: answer.content.ranks, interval: answer.content.interval_s });
    byId("hotspots-text").hidden = !state.may.read_text;
    byId("job-form").querySelector("button").disabled = !state.may.change;
    showTree();
    if (view.selected !== null && !byId("node").contains(document.activeElement)) selectNode(view.selected, false);
  }
  return state.interval;
});

const lists = repeating(async () => {
  const spots = await attempt(() => call("GET", `hotspots?limit=20&preview=${state.hasText}`));
  if (spots) showHotspots(byId("hotspots"), ofRank(spots.ranks).hotspots, (id) => selectNode(id));
  const pins = await attempt(() => call("GET", "pins"));
  if (pins) showPins(byId("pins"), ofRank(pins.ranks).pins, state.may, unpin);
  return LISTS_S;
});

const jobs = repeating(async () => {
  const answer = await attempt(() => call("GET", "prewarm"));
  if (answer) showJobs(byId("jobs"), answer.jobs, state.may, cancel);
  return JOBS_S;
});

const polls = [trees, stats, lists, jobs];

function showRanks(ranks) {
  const choice = byId("rank");
  byId("rank-choice").hidden = ranks.length < 2;
  if (choice.options.length !== ranks.length) choice.replaceChildren(...ranks.map((rank) => el("option", {}, String(rank))));
}

// ---- the tree ----

function showTree() {
  if (!state.trees.length) return;
  view.show(ofRank(state.trees).tree);
  requestAnimationFrame(() => requestAnimationFrame(describeTree));
}

function describeTree() {
  const { tree } = view.rows, row = view.row;
  const left = tree.left_out_nodes ? `; ${whole(tree.left_out_nodes)} small nodes with ${whole(tree.left_out_tokens)} tokens are left out` : "";
  const filtered = view.filter.name !== "all" || view.filter.least > 0 ? `; ${whole(view.count)} of ${whole(view.rows.length)} shown match` : "";
  const all = `${whole(tree.nodes)} nodes, ${whole(tree.tokens)} tokens${left}${filtered}.`;
  const text = row >= 0 ? `${inShort(view.rows.columns, row)}${filtered}.` : all;
  if (byId("tree-said").textContent !== text) byId("tree-said").textContent = text;
  byId("tree-panel").dataset.isReady = "true";
}

function showCrumbs(path) {
  const button = (text, row) => el("button", { type: "button", className: "plain", onclick: () => view.zoom(row) }, text);
  const parts = path.flatMap((row) => [" › ", button(String(view.rows.columns.id[row]), row)]);
  byId("crumbs").replaceChildren(button("whole tree", -1), ...parts);
}

function showLegend() {
  const entries = COLOURS[view.colour].legend.map(([colour, text]) =>
    el("span", {}, svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { width: 10, height: 10, fill: colour })), text));
  byId("legend").replaceChildren(...entries, el("span", {}, "⚑ pinned · ↓ told to go first · bar below: in use · dashed: goes next · grey: many small nodes"));
}

// ---- a node ----

async function selectNode(id, isNew = true) {
  if (isNew) state.text = undefined;
  view.selected = id;
  view.draw();
  if (view.rows) {
    if (isNew) view.reveal();
    describeTree();
  }
  const node = await attempt(() => call("GET", `tree/${id}?dp_rank=${state.rank}`), byId("node"));
  if (!node || view.selected !== id) return;
  state.node = node;
  showSelected();
}

function showSelected() {
  const id = state.node.node;
  const actions = {
    zoom: () => view.zoom(view.row),
    pin: (seconds) => change(() => call("POST", "pins", { body: { node_id: id, dp_rank: state.rank, ttl_s: seconds } })),
    unpin,
    text: async () => {
      const told = await attempt(() => call("GET", `tree/${id}?dp_rank=${state.rank}&preview=true`));
      if (told) state.text = told.preview;
      showSelected();
    },
  };
  showNode(byId("node"), state.node, { may: state.may, actions, text: state.text });
}

/** Something was changed: show it where it shows. */
async function change(work) {
  const done = await attempt(work);
  if (done === undefined) return;
  if (view.selected !== null) selectNode(view.selected, false);
  polls.forEach((poll) => poll.now());
}

const unpin = (pinId) => change(() => call("DELETE", `pins/${encodeURIComponent(pinId)}`));
const cancel = (jobId) => change(() => call("DELETE", `prewarm/${encodeURIComponent(jobId)}`));

async function submitJob(event) {
  event.preventDefault();
  const said = byId("job-said");
  const job = await attempt(() => {
    const prompts = promptsOf(byId("job-prompts").value);
    const retain = Number(byId("job-retain").value) || null;
    return call("POST", "prewarm", { body: { prompts, tier: byId("job-tier").value, retain_s: retain } });
  }, said);
  if (!job) return;
  said.textContent = `Job ${job.id.slice(0, 8)} waits for a quiet moment.`;
  jobs.now();
}

// ---- the key ----

function askForKey(text) {
  byId("key-note").textContent = text;
  byId("key-form").hidden = false;
  byId("key").focus();
}

function useKey(value) {
  setKey(value);
  byId("key").value = "";
  byId("key-form").hidden = true;
  Object.assign(state, { etag: null, isLetIn: true });
  polls.forEach((poll) => poll.now());
}

// ---- wiring ----

byId("key-button").addEventListener("click", () => askForKey("For a server with --admin-api-key or --api-key."));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
});
byId("key-forget").addEventListener("click", () => {
  setKey("");
  location.reload();
});
byId("job-form").addEventListener("submit", submitJob);
byId("hotspots-text").addEventListener("click", () => {
  state.hasText = !state.hasText;
  byId("hotspots-text").textContent = state.hasText ? "Hide their first words" : "Show their first words";
  lists.now();
});
byId("rank").addEventListener("change", () => {
  state.rank = Number(byId("rank").value);
  Object.assign(view, { selected: null, zoomed: null });
  overTime.last = null;
  showTree();
  polls.forEach((poll) => poll.now());
});
for (const choice of document.querySelectorAll("input[name=colour]")) {
  choice.addEventListener("change", () => {
    view.colour = choice.value;
    showLegend();
    view.draw();
  });
}
const refilter = () => {
  view.filter = { name: byId("filter").value, least: Number(byId("least").value) || 0 };
  if (!view.rows) return;
  view.count = view.rows.matches(view.filter.name, view.filter.least).count;
  view.draw();
  describeTree();
};
byId("filter").addEventListener("change", refilter);
byId("least").addEventListener("input", refilter);
byId("find").addEventListener("change", () => byId("find").value && selectNode(Number(byId("find").value)));

showLegend();
const { key: needed } = await call("GET", "web/access.json");
if (needed === "none") byId("key-button").hidden = true;
if (needed !== "none" && !key()) {
  say("needs a key");
  askForKey(needed === "admin" ? "This server shows its tree to those who have its admin key." : "This server needs its API key.");
} else {
  state.isLetIn = true;
  polls.forEach((poll) => poll.now());
}
